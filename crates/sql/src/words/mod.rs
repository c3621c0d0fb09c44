//! Looks up words: is it a keyword that the classifier acts on, a built-in function (with what
//! effect), or neither? One hash table over all lists, built by the compiler. Knows no syntax.

mod lists;
mod reads;

pub(crate) use reads::{Part, Role};

use crate::mode::LexMode;
use crate::statement::Flags;
use millrace_base::Family;

/// What a word followed by `(` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callee {
    /// No built-in: a stored or loadable function.
    Stored,
    /// A keyword that cannot be called.
    Keyword,
    /// A built-in.
    Builtin,
}

/// What one word means in one family.
#[derive(Clone, Copy)]
struct Meaning {
    callee: Callee,
    /// Known only with `(` right behind it.
    adjacent: bool,
    /// Known only without quotes.
    unquoted: bool,
}

const PLAIN: Meaning = Meaning {
    callee: Callee::Stored,
    adjacent: false,
    unquoted: false,
};

#[derive(Clone, Copy)]
struct Slot {
    word: &'static [u8],
    kw: Kw,
    effect: Flags,
    mysql: Meaning,
    mariadb: Meaning,
    /// In MySQL before 9.6 only.
    old: bool,
}

const FREE: Slot = Slot {
    word: b"",
    kw: Kw::None,
    effect: Flags::empty(),
    mysql: PLAIN,
    mariadb: PLAIN,
    old: false,
};

/// A word's place in the table; [`WordId::NONE`] for words that are in no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordId(u16);

impl WordId {
    pub(crate) const NONE: WordId = WordId(0);

    /// The keyword, [`Kw::None`] where the classifier does not act on it.
    pub(crate) fn kw(self) -> Kw {
        self.slot().kw
    }

    /// What a call of the built-in does.
    pub(crate) fn effect(self) -> Flags {
        self.slot().effect
    }

    /// What the word is before `(`. `glued`: the `(` counts as standing right behind it.
    /// `quoted`: the word stood in quotes.
    pub(crate) fn callee(self, mode: &LexMode, glued: bool, quoted: bool) -> Callee {
        let slot = self.slot();
        let meaning = match mode.family {
            Family::MySql if slot.old && mode.version < 90600 => Meaning {
                callee: Callee::Builtin,
                ..PLAIN
            },
            Family::MySql => slot.mysql,
            Family::MariaDb => slot.mariadb,
        };
        match meaning.callee {
            Callee::Keyword if quoted => Callee::Stored,
            Callee::Builtin if quoted && (meaning.adjacent || meaning.unquoted) => Callee::Stored,
            Callee::Builtin if !glued && meaning.adjacent => Callee::Stored,
            callee => callee,
        }
    }

    fn slot(self) -> &'static Slot {
        &TABLE[self.0 as usize % SIZE]
    }
}

/// The running hash of a word's bytes; case does not matter.
#[derive(Clone, Copy)]
pub(crate) struct WordHash(u32);

impl WordHash {
    pub(crate) const START: WordHash = WordHash(0x811c_9dc5);

    #[inline(always)]
    pub(crate) const fn add(self, byte: u8) -> WordHash {
        WordHash((self.0 ^ (byte | 0x20) as u32).wrapping_mul(0x0100_0193))
    }

    const fn slot(self) -> usize {
        let spread = self.0 ^ (self.0 >> 15);
        spread as usize % SIZE
    }
}

/// Finds `word`, whose bytes were added to `hash`.
#[inline]
pub(crate) fn find(word: &[u8], hash: WordHash) -> WordId {
    find_by(word, hash, <[u8]>::eq_ignore_ascii_case)
}

/// As [`find`], for a word of nothing but letters, digits, `_` and `$`: no two of these differ in
/// the bit for case only, but letters.
#[inline]
pub(crate) fn find_ident(word: &[u8], hash: WordHash) -> WordId {
    find_by(word, hash, |known, word| {
        let same = |(known, word): (&u8, &u8)| known | 0x20 == word | 0x20;
        known.len() == word.len() && known.iter().zip(word).all(same)
    })
}

#[inline(always)]
fn find_by(word: &[u8], hash: WordHash, is: impl Fn(&[u8], &[u8]) -> bool) -> WordId {
    let mut at = hash.slot();
    loop {
        let known = TABLE[at].word;
        if known.is_empty() {
            return WordId::NONE;
        }
        if is(known, word) {
            return WordId(at as u16);
        }
        at = next_slot(at);
    }
}

/// Twice as many places as words, so that chains stay short. Place 0 stays free: it stands for
/// words in no list.
const SIZE: usize = 4096;

const fn next_slot(at: usize) -> usize {
    let next = (at + 1) % SIZE;
    if next == 0 { 1 } else { next }
}

static TABLE: [Slot; SIZE] = build();

const fn build() -> [Slot; SIZE] {
    let mut table = [FREE; SIZE];
    let mut i = 0;
    while i < KEYWORDS.len() {
        let at = place(&mut table, KEYWORDS[i].0.as_bytes());
        table[at].kw = KEYWORDS[i].1;
        i += 1;
    }
    fill(
        &mut table,
        lists::NOT_CALLABLE_BOTH,
        Some(Callee::Keyword),
        Some(Callee::Keyword),
    );
    fill(
        &mut table,
        lists::NOT_CALLABLE_MYSQL,
        Some(Callee::Keyword),
        None,
    );
    fill(
        &mut table,
        lists::NOT_CALLABLE_MARIADB,
        None,
        Some(Callee::Keyword),
    );
    fill(&mut table, lists::KEYWORDS_MARIADB, None, None);
    fill(
        &mut table,
        lists::BUILTIN_BOTH,
        Some(Callee::Builtin),
        Some(Callee::Builtin),
    );
    fill(
        &mut table,
        lists::BUILTIN_MYSQL,
        Some(Callee::Builtin),
        None,
    );
    fill(
        &mut table,
        lists::BUILTIN_MARIADB,
        None,
        Some(Callee::Builtin),
    );
    fill_with(&mut table, lists::BUILTIN_MYSQL_OLD, Mark::Old);
    fill_with(&mut table, lists::ADJACENT_BOTH, Mark::Adjacent(true, true));
    fill_with(
        &mut table,
        lists::ADJACENT_MYSQL,
        Mark::Adjacent(true, false),
    );
    fill_with(
        &mut table,
        lists::ADJACENT_MARIADB,
        Mark::Adjacent(false, true),
    );
    fill_with(&mut table, lists::UNQUOTED_BOTH, Mark::Unquoted(true, true));
    fill_with(
        &mut table,
        lists::UNQUOTED_MYSQL,
        Mark::Unquoted(true, false),
    );
    fill_with(
        &mut table,
        lists::UNQUOTED_MARIADB,
        Mark::Unquoted(false, true),
    );
    let mut i = 0;
    while i < EFFECTS.len() {
        fill_with(&mut table, EFFECTS[i].0, Mark::Effect(EFFECTS[i].1));
        i += 1;
    }
    table
}

const fn fill(
    table: &mut [Slot; SIZE],
    words: &'static str,
    mysql: Option<Callee>,
    mariadb: Option<Callee>,
) {
    fill_with(table, words, Mark::Callee(mysql, mariadb));
}

#[derive(Clone, Copy)]
enum Mark {
    Callee(Option<Callee>, Option<Callee>),
    Adjacent(bool, bool),
    Unquoted(bool, bool),
    Old,
    Effect(Flags),
}

const fn fill_with(table: &mut [Slot; SIZE], words: &'static str, mark: Mark) {
    let mut rest = words.as_bytes();
    while !rest.is_empty() {
        let mut end = 0;
        while end < rest.len() && rest[end] != b' ' {
            end += 1;
        }
        let (word, tail) = rest.split_at(end);
        if !word.is_empty() {
            let at = place(table, word);
            apply(&mut table[at], mark);
        }
        rest = if tail.is_empty() {
            tail
        } else {
            tail.split_at(1).1
        };
    }
}

const fn apply(slot: &mut Slot, mark: Mark) {
    match mark {
        Mark::Callee(mysql, mariadb) => {
            if let Some(callee) = mysql {
                slot.mysql.callee = callee;
            }
            if let Some(callee) = mariadb {
                slot.mariadb.callee = callee;
            }
        }
        Mark::Adjacent(mysql, mariadb) => {
            slot.mysql.adjacent |= mysql;
            slot.mariadb.adjacent |= mariadb;
        }
        Mark::Unquoted(mysql, mariadb) => {
            slot.mysql.unquoted |= mysql;
            slot.mariadb.unquoted |= mariadb;
        }
        Mark::Old => slot.old = true,
        Mark::Effect(flags) => slot.effect = slot.effect.union(flags),
    }
}

/// The place of `word`, taken for it where it has none.
const fn place(table: &mut [Slot; SIZE], word: &'static [u8]) -> usize {
    let mut hash = WordHash::START;
    let mut i = 0;
    while i < word.len() {
        hash = hash.add(word[i]);
        i += 1;
    }
    let mut at = hash.slot();
    if at == 0 {
        at = 1;
    }
    while !table[at].word.is_empty() && !same(table[at].word, word) {
        at = next_slot(at);
    }
    table[at].word = word;
    at
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// What calls of built-ins do beyond computing a value from their arguments.
const EFFECTS: &[(&str, Flags)] = &[
    (
        "CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP UTC_DATE UTC_TIME \
         UTC_TIMESTAMP CURRENT_USER CURRENT_ROLE USER CURDATE CURTIME NOW SYSDATE SESSION_USER \
         SYSTEM_USER UNIX_TIMESTAMP RAND UUID RANDOM_BYTES SLEEP BENCHMARK DATABASE SCHEMA \
         SYS_GUID ENCRYPT CURRENT_ROLE_IN CURRENT_USER_IN CONNECTION_ID FOUND_ROWS ROW_COUNT \
         LAST_INSERT_ID GET_LOCK RELEASE_LOCK RELEASE_ALL_LOCKS IS_FREE_LOCK IS_USED_LOCK \
         LOAD_FILE NEXTVAL SETVAL LASTVAL UUID_SHORT PS_CURRENT_THREAD_ID PS_THREAD_ID ROWNUM",
        Flags::NONDETERMINISTIC,
    ),
    (
        "CONNECTION_ID PS_CURRENT_THREAD_ID",
        Flags::USES_CONNECTION_ID,
    ),
    ("FOUND_ROWS", Flags::USES_FOUND_ROWS),
    ("ROW_COUNT", Flags::USES_ROW_COUNT),
    ("GET_LOCK", Flags::ACQUIRES_USER_LOCK),
    ("RELEASE_LOCK", Flags::RELEASES_USER_LOCK),
    ("RELEASE_ALL_LOCKS", Flags::RELEASES_ALL_USER_LOCKS),
    ("IS_FREE_LOCK IS_USED_LOCK", Flags::USES_USER_LOCK_STATE),
    ("LOAD_FILE", Flags::LOAD_FILE),
    (
        "MASTER_POS_WAIT SOURCE_POS_WAIT MASTER_GTID_WAIT WAIT_FOR_EXECUTED_GTID_SET \
         WAIT_UNTIL_SQL_THREAD_AFTER_GTIDS WSREP_SYNC_WAIT_UPTO_GTID",
        Flags::WAITS,
    ),
    ("NEXTVAL SETVAL LASTVAL", Flags::SEQUENCE),
    ("LASTVAL", Flags::ASKS_DRAWN),
    ("UUID_SHORT", Flags::UUID_SHORT),
    (
        // One server's numbers go up; those of several do not, together.
        "UUID_SHORT VERSION ICU_VERSION VERSION_WITH_UPDATE PS_THREAD_ID BINLOG_GTID_POS \
         WSREP_LAST_SEEN_GTID WSREP_LAST_WRITTEN_GTID VALIDATE_PASSWORD_STRENGTH ROLES_GRAPHML",
        Flags::SERVER_LOCAL,
    ),
];

macro_rules! keywords {
    ($($name:ident $text:literal)*) => {
        /// A keyword that the classifier acts on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kw { None, $($name),* }

        const KEYWORDS: &[(&str, Kw)] = &[$(($text, Kw::$name)),*];
    };
}

keywords! {
    All "ALL" Alter "ALTER" Analyze "ANALYZE" And "AND" As "AS" Atomic "ATOMIC" Backup "BACKUP"
    Begin "BEGIN" Binary "BINARY" Binlog "BINLOG" By "BY" Cache "CACHE" Call "CALL" Case "CASE"
    Chain "CHAIN" Change "CHANGE" Character "CHARACTER" Char "CHAR" Charset "CHARSET"
    Check "CHECK" Checksum "CHECKSUM" Clone "CLONE" Close "CLOSE" Collate "COLLATE"
    Collation "COLLATION" Columns "COLUMNS" Commit "COMMIT" Concurrent "CONCURRENT"
    Condition "CONDITION" Connection "CONNECTION" Consistent "CONSISTENT" Count "COUNT"
    Create "CREATE" Cube "CUBE" Current "CURRENT" Data "DATA" Database "DATABASE"
    Databases "DATABASES" Deallocate "DEALLOCATE" Declare "DECLARE" Default "DEFAULT"
    Delayed "DELAYED" Delete "DELETE" Desc "DESC" Describe "DESCRIBE" Diagnostics "DIAGNOSTICS"
    Distinct "DISTINCT" Do "DO" Drop "DROP" Dual "DUAL" Dumpfile "DUMPFILE" End "END"
    Engine "ENGINE" Engines "ENGINES" Errors "ERRORS" Escape "ESCAPE" Event "EVENT"
    Events "EVENTS" Except "EXCEPT" Execute "EXECUTE" Exists "EXISTS" Explain "EXPLAIN"
    Export "EXPORT" Extended "EXTENDED" Fields "FIELDS" Flush "FLUSH" For "FOR" Force "FORCE"
    Format "FORMAT" From "FROM" Full "FULL" Function "FUNCTION" Get "GET" Global "GLOBAL"
    Grant "GRANT" Grants "GRANTS" Group "GROUP" Handler "HANDLER" Hard "HARD" Having "HAVING"
    Help "HELP" HighPriority "HIGH_PRIORITY" History "HISTORY" Id "ID" If "IF" Ignore "IGNORE"
    Immediate "IMMEDIATE" Import "IMPORT" In "IN" Index "INDEX" Indexes "INDEXES"
    Infile "INFILE" Insert "INSERT" Install "INSTALL" Instance "INSTANCE"
    Intersect "INTERSECT" Into "INTO" Isolation "ISOLATION" Join "JOIN" JsonTable "JSON_TABLE"
    Key "KEY" Keys "KEYS" Kill "KILL" LastInsertId "LAST_INSERT_ID" Lateral "LATERAL"
    Level "LEVEL" Library "LIBRARY" Limit "LIMIT" Load "LOAD" Local "LOCAL" Lock "LOCK"
    Logs "LOGS" Loop "LOOP" LowPriority "LOW_PRIORITY" Master "MASTER" Minus "MINUS"
    Names "NAMES" Next "NEXT" No "NO" Not "NOT" Of "OF" Oj "OJ" On "ON" One "ONE" Only "ONLY"
    Open "OPEN" Optimize "OPTIMIZE" Or "OR" Order "ORDER" Outfile "OUTFILE" Package "PACKAGE"
    Parser "PARSER" Partitions "PARTITIONS" Password "PASSWORD" Persist "PERSIST"
    PersistOnly "PERSIST_ONLY" Phase "PHASE" Prepare "PREPARE" Previous "PREVIOUS"
    Procedure "PROCEDURE" Processlist "PROCESSLIST" Profile "PROFILE" Profiles "PROFILES"
    Purge "PURGE" Qualify "QUALIFY" Query "QUERY" Quick "QUICK" Read "READ" Recover "RECOVER"
    Recursive "RECURSIVE" Relaylog "RELAYLOG" Release "RELEASE" Rename "RENAME"
    Repair "REPAIR" Repeat "REPEAT" Repeatable "REPEATABLE" Replace "REPLACE"
    Replica "REPLICA" Replicas "REPLICAS" Reset "RESET" Resignal "RESIGNAL"
    Resource "RESOURCE" Restart "RESTART" Return "RETURN" Returning "RETURNING"
    Revoke "REVOKE" Role "ROLE" Rollback "ROLLBACK" Rollup "ROLLUP" Savepoint "SAVEPOINT"
    Schema "SCHEMA" Schemas "SCHEMAS" Select "SELECT" Sequence "SEQUENCE"
    Serializable "SERIALIZABLE" Session "SESSION" Set "SET" Share "SHARE" Show "SHOW"
    Shutdown "SHUTDOWN" Signal "SIGNAL" Slave "SLAVE" Slaves "SLAVES" Snapshot "SNAPSHOT"
    Soft "SOFT" SqlCalcFoundRows "SQL_CALC_FOUND_ROWS" Stacked "STACKED" Stage "STAGE"
    Start "START" Statement "STATEMENT" Status "STATUS" Stop "STOP"
    StraightJoin "STRAIGHT_JOIN" System "SYSTEM" Table "TABLE" Tables "TABLES"
    Temporary "TEMPORARY" Ties "TIES" To "TO" Transaction "TRANSACTION" Trigger "TRIGGER"
    Triggers "TRIGGERS" Truncate "TRUNCATE" Uncommitted "UNCOMMITTED" Committed "COMMITTED"
    Uninstall "UNINSTALL" Union "UNION" Unlock "UNLOCK" Update "UPDATE" Use "USE" User "USER"
    Using "USING" Value "VALUE" Values "VALUES" Variables "VARIABLES" View "VIEW"
    Warnings "WARNINGS" Where "WHERE" While "WHILE" Window "WINDOW" With "WITH" Work "WORK"
    Write "WRITE" Xa "XA" Xml "XML" CurrentDate "CURRENT_DATE" CurrentTime "CURRENT_TIME"
    CurrentTimestamp "CURRENT_TIMESTAMP" Localtime "LOCALTIME" Localtimestamp "LOCALTIMESTAMP"
    UtcDate "UTC_DATE" UtcTime "UTC_TIME" UtcTimestamp "UTC_TIMESTAMP"
    CurrentUser "CURRENT_USER" CurrentRole "CURRENT_ROLE" Sysdate "SYSDATE" Rownum "ROWNUM"
    True "TRUE" False "FALSE" Null "NULL" Binlogs "BINLOGS" Persistent "PERSISTENT"
}

impl Kw {
    /// Whether it stands, without parentheses, for the time or for who asks.
    pub(crate) fn is_of_the_moment(self) -> bool {
        matches!(
            self,
            Self::CurrentDate
                | Self::CurrentTime
                | Self::CurrentTimestamp
                | Self::Localtime
                | Self::Localtimestamp
                | Self::UtcDate
                | Self::UtcTime
                | Self::UtcTimestamp
                | Self::CurrentUser
                | Self::CurrentRole
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(word: &str) -> WordId {
        let hash = word.bytes().fold(WordHash::START, WordHash::add);
        find(word.as_bytes(), hash)
    }

    #[test]
    fn words_are_found_in_any_case() {
        assert_eq!(lookup("select").kw(), Kw::Select);
        assert_eq!(lookup("SELECT").kw(), Kw::Select);
        assert_eq!(lookup("sbtest1"), WordId::NONE);
        for (text, kw) in KEYWORDS {
            assert_eq!(lookup(text).kw(), *kw, "{text}");
        }
    }

    #[test]
    fn callees_depend_on_family_and_spacing() {
        let my = LexMode::new(Family::MySql, 90704);
        let old = LexMode::new(Family::MySql, 80400);
        let ma = LexMode::new(Family::MariaDb, 101119);
        let callee = |word, mode, glued| lookup(word).callee(mode, glued, false);
        assert_eq!(callee("count", &my, true), Callee::Builtin);
        assert_eq!(callee("count", &my, false), Callee::Stored);
        assert_eq!(callee("abs", &my, false), Callee::Builtin);
        assert_eq!(callee("nextval", &my, true), Callee::Stored);
        assert_eq!(callee("nextval", &ma, true), Callee::Builtin);
        assert_eq!(callee("md5", &my, true), Callee::Stored);
        assert_eq!(callee("md5", &old, true), Callee::Builtin);
        assert_eq!(callee("in", &my, true), Callee::Keyword);
        assert_eq!(callee("my_function", &ma, true), Callee::Stored);
        assert_eq!(lookup("key").callee(&my, true, true), Callee::Stored);
    }
}
