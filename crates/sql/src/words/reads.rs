//! Words as the analysis of reads takes them: which built-in functions give the same for the same rows and the same
//! session, and which keywords may stand before `(` without a call. Knows no syntax.

use super::{SIZE, Slot, WordHash, WordId, next_slot, same};

/// What a word before `(` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// In no list: whatever it calls is not known to be stable.
    Unlisted,
    /// A function whose value depends on nothing but its arguments and the session's variables.
    Stable,
    /// A keyword, an operator or a type: the parentheses behind it are no call.
    Opens,
}

/// Functions whose values depend on nothing but their arguments and the session's variables.
///
/// Not here, among others: CONVERT_TZ (reads tables of time zones that are loaded while a server runs),
/// DEFAULT (MariaDB evaluates the default, which may be RAND()), MATCH (full text),
/// JSON_STORAGE_SIZE and JSON_STORAGE_FREE (each server's own storage),
/// VALIDATE_PASSWORD_STRENGTH (global variables), ENCRYPT and DES_ENCRYPT (salt, a file of keys), and
/// what makes a value of type TIME (ADDTIME, MAKETIME, SEC_TO_TIME, STR_TO_DATE, SUBTIME, TIME, TIMEDIFF): servers
/// complete it with the current date where a date is needed. UNIX_TIMESTAMP is asked for apart.
const STABLE: &str = "\
    ABS ACOS ADDDATE ADD_MONTHS AES_DECRYPT AES_ENCRYPT ASCII ASIN ATAN ATAN2 AVG BIN \
    BIN_TO_UUID BIT_AND BIT_COUNT BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING CHAR CHARACTER \
    CHARACTER_LENGTH CHARSET CHAR_LENGTH CHR COALESCE COERCIBILITY COLLATION COLUMN_ADD \
    COLUMN_CHECK COLUMN_CREATE COLUMN_DELETE COLUMN_EXISTS COLUMN_GET COLUMN_JSON COLUMN_LIST \
    COMPRESS CONCAT CONCAT_OPERATOR_ORACLE CONCAT_WS CONTAINS CONV CONVERT COS COT COUNT CRC32 \
    CRC32C CUME_DIST DATABASE DATE DATEDIFF DATE_ADD DATE_FORMAT DATE_SUB DAY DAYNAME \
    DAYOFMONTH DAYOFWEEK DAYOFYEAR DECODE DECODE_ORACLE DEGREES DENSE_RANK ELT ENCODE EXP \
    EXPORT_SET EXTRACT EXTRACTVALUE FIELD FIND_IN_SET FIRST_VALUE FLOOR FORMAT FORMAT_BYTES \
    FORMAT_PICO_TIME FROM_BASE64 FROM_DAYS FROM_UNIXTIME FROM_VECTOR GEOMCOLLECTION \
    GEOMETRYCOLLECTION GET_FORMAT GLENGTH GREATEST GROUPING GROUP_CONCAT GTID_SUBSET \
    GTID_SUBTRACT HEX HOUR IF IFNULL INET6_ATON INET6_NTOA INET_ATON INET_NTOA INSERT INSTR \
    INTERVAL ISNULL IS_IPV4 IS_IPV4_COMPAT IS_IPV4_MAPPED IS_IPV6 IS_UUID JSON_ARRAY \
    JSON_ARRAYAGG JSON_ARRAY_APPEND JSON_ARRAY_INSERT JSON_COMPACT JSON_CONTAINS \
    JSON_CONTAINS_PATH JSON_DEPTH JSON_DETAILED JSON_EQUALS JSON_EXISTS JSON_EXTRACT JSON_INSERT \
    JSON_KEYS JSON_LENGTH JSON_LOOSE JSON_MERGE JSON_MERGE_PATCH JSON_MERGE_PRESERVE \
    JSON_NORMALIZE JSON_OBJECT JSON_OBJECTAGG JSON_OVERLAPS JSON_PRETTY JSON_QUERY JSON_QUOTE \
    JSON_REMOVE JSON_REPLACE JSON_SCHEMA_VALID JSON_SCHEMA_VALIDATION_REPORT JSON_SEARCH \
    JSON_SET JSON_TABLE JSON_TYPE JSON_UNQUOTE JSON_VALID JSON_VALUE LAG LAST_DAY LAST_VALUE \
    LCASE LEAD LEAST LEFT LENGTH LENGTHB LINESTRING LN LOCATE LOG LOG10 LOG2 LOWER LPAD \
    LPAD_ORACLE LTRIM LTRIM_ORACLE MAKEDATE MAKE_SET MAX MBRCONTAINS MBRCOVEREDBY MBRCOVERS \
    MBRDISJOINT MBREQUAL MBREQUALS MBRINTERSECTS MBROVERLAPS MBRTOUCHES MBRWITHIN MD5 MEDIAN \
    MICROSECOND MID MIN MINUTE MOD MONTH MONTHNAME MULTILINESTRING MULTIPOINT MULTIPOLYGON \
    NATURAL_SORT_KEY NTH_VALUE NTILE NULLIF NVL NVL2 OCT OCTET_LENGTH ORD OVERLAPS \
    PERCENTILE_CONT PERCENTILE_DISC PERCENT_RANK PERIOD_ADD PERIOD_DIFF PI POINT POLYGON \
    POSITION POW POWER QUARTER QUOTE RADIANS RANK REGEXP_INSTR REGEXP_LIKE REGEXP_REPLACE \
    REGEXP_SUBSTR REPEAT REPLACE REPLACE_ORACLE REVERSE RIGHT ROUND ROW ROW_NUMBER RPAD \
    RPAD_ORACLE RTRIM RTRIM_ORACLE SCHEMA SECOND SFORMAT SHA SHA1 SHA2 SIGN SIN SOUNDEX SPACE \
    SQRT SRID STATEMENT_DIGEST STATEMENT_DIGEST_TEXT STD STDDEV STDDEV_POP STDDEV_SAMP STRCMP \
    STRING_TO_VECTOR ST_AREA ST_ASBINARY ST_ASGEOJSON ST_ASTEXT ST_ASWKB ST_ASWKT ST_BOUNDARY \
    ST_BUFFER ST_BUFFER_STRATEGY ST_CENTROID ST_COLLECT ST_CONTAINS ST_CONVEXHULL ST_CROSSES \
    ST_DIFFERENCE ST_DIMENSION ST_DISJOINT ST_DISTANCE ST_DISTANCE_SPHERE ST_ENDPOINT \
    ST_ENVELOPE ST_EQUALS ST_EXTERIORRING ST_FRECHETDISTANCE ST_GEOHASH ST_GEOMCOLLFROMTEXT \
    ST_GEOMCOLLFROMTXT ST_GEOMCOLLFROMWKB ST_GEOMETRYCOLLECTIONFROMTEXT \
    ST_GEOMETRYCOLLECTIONFROMWKB ST_GEOMETRYFROMTEXT ST_GEOMETRYFROMWKB ST_GEOMETRYN \
    ST_GEOMETRYTYPE ST_GEOMFROMGEOJSON ST_GEOMFROMTEXT ST_GEOMFROMWKB ST_HAUSDORFFDISTANCE \
    ST_INTERIORRINGN ST_INTERSECTION ST_INTERSECTS ST_ISCLOSED ST_ISEMPTY ST_ISRING ST_ISSIMPLE \
    ST_ISVALID ST_LATFROMGEOHASH ST_LATITUDE ST_LENGTH ST_LINEFROMTEXT ST_LINEFROMWKB \
    ST_LINEINTERPOLATEPOINT ST_LINEINTERPOLATEPOINTS ST_LINESTRINGFROMTEXT ST_LINESTRINGFROMWKB \
    ST_LONGFROMGEOHASH ST_LONGITUDE ST_MAKEENVELOPE ST_MLINEFROMTEXT ST_MLINEFROMWKB \
    ST_MPOINTFROMTEXT ST_MPOINTFROMWKB ST_MPOLYFROMTEXT ST_MPOLYFROMWKB \
    ST_MULTILINESTRINGFROMTEXT ST_MULTILINESTRINGFROMWKB ST_MULTIPOINTFROMTEXT \
    ST_MULTIPOINTFROMWKB ST_MULTIPOLYGONFROMTEXT ST_MULTIPOLYGONFROMWKB ST_NUMGEOMETRIES \
    ST_NUMINTERIORRING ST_NUMINTERIORRINGS ST_NUMPOINTS ST_OVERLAPS ST_POINTATDISTANCE \
    ST_POINTFROMGEOHASH ST_POINTFROMTEXT ST_POINTFROMWKB ST_POINTN ST_POINTONSURFACE \
    ST_POLYFROMTEXT ST_POLYFROMWKB ST_POLYGONFROMTEXT ST_POLYGONFROMWKB ST_RELATE ST_SIMPLIFY \
    ST_SRID ST_STARTPOINT ST_SWAPXY ST_SYMDIFFERENCE ST_TOUCHES ST_TRANSFORM ST_UNION \
    ST_VALIDATE ST_WITHIN ST_X ST_Y SUBDATE SUBSTR SUBSTRING SUBSTRING_INDEX SUBSTR_ORACLE SUM \
    TAN TIMESTAMP TIMESTAMPADD TIMESTAMPDIFF TIME_FORMAT TIME_TO_SEC TO_BASE64 TO_CHAR TO_DAYS \
    TO_SECONDS TRIM TRIM_ORACLE TRUNCATE UCASE UNCOMPRESS UNCOMPRESSED_LENGTH UNHEX UPDATEXML \
    UPPER UUID_TO_BIN VARIANCE VAR_POP VAR_SAMP VECTOR_DIM VECTOR_TO_STRING WEEK WEEKDAY \
    WEEKOFYEAR WEIGHT_STRING WITHIN YEAR YEARWEEK";

/// Keywords behind which parentheses are no call: clauses, operators, lists of names, types.
const OPENS: &str = "\
    ALL AND ANY AS BETWEEN BIGINT BINARY BIT BOTH BY CASE COLUMNS CUBE DATETIME DEC DECIMAL \
    DISTINCT DISTINCTROW DIV DOUBLE ELSE ESCAPE EXCEPT EXISTS FIXED FLOAT FOR FROM GROUP HAVING \
    HIGH_PRIORITY IN INDEX INT INTEGER INTERSECT IS JOIN KEY LATERAL LEADING LIKE LIMIT \
    MEDIUMINT NCHAR NOT NUMERIC NVARCHAR OF OFFSET ON OR OVER PARTITION QUALIFY REAL REGEXP \
    RLIKE ROLLUP SELECT SMALLINT SOME SQL_BIG_RESULT SQL_BUFFER_RESULT SQL_CACHE \
    SQL_SMALL_RESULT STRAIGHT_JOIN THEN TINYINT TRAILING UNION USING VALUES VARBINARY VARCHAR \
    WHEN WHERE XOR";

macro_rules! parts {
    ($($name:ident $text:literal)*) => {
        /// Words that the analysis acts on and the classifier does not.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Part { None, $($name),* }

        const PARTS: &[(&str, Part)] = &[$(($text, Part::$name)),*];
    };
}

parts! {
    Between "BETWEEN" Cross "CROSS" Examined "EXAMINED" Force "FORCE" Inner "INNER"
    Interval "INTERVAL" Left "LEFT" Match "MATCH" Max "MAX" Min "MIN" Natural "NATURAL" Outer "OUTER" Partition "PARTITION" Path "PATH" Right "RIGHT"
    SqlNoCache "SQL_NO_CACHE" SystemTime "SYSTEM_TIME" Tablesample "TABLESAMPLE" Time "TIME"
    UnixTimestamp "UNIX_TIMESTAMP" Xor "XOR"
}

impl WordId {
    /// What the word is before `(`.
    pub(crate) fn role(self) -> Role {
        ROLES[self.0 as usize % SIZE].0
    }

    /// The word, where the analysis of reads acts on it.
    pub(crate) fn part(self) -> Part {
        ROLES[self.0 as usize % SIZE].1
    }
}

/// Beside the other table, so that its places stay as small as the classifier needs them.
static ROLES: [(Role, Part); SIZE] = build();

const fn build() -> [(Role, Part); SIZE] {
    let words = super::build();
    let mut roles = [(Role::Unlisted, Part::None); SIZE];
    mark(&mut roles, &words, STABLE, Role::Stable);
    mark(&mut roles, &words, OPENS, Role::Opens);
    let mut i = 0;
    while i < PARTS.len() {
        roles[place_of(&words, PARTS[i].0.as_bytes())].1 = PARTS[i].1;
        i += 1;
    }
    roles
}

const fn mark(
    roles: &mut [(Role, Part); SIZE],
    words: &[Slot; SIZE],
    list: &'static str,
    role: Role,
) {
    let mut rest = list.as_bytes();
    while !rest.is_empty() {
        let mut end = 0;
        while end < rest.len() && rest[end] != b' ' {
            end += 1;
        }
        let (word, tail) = rest.split_at(end);
        if !word.is_empty() {
            roles[place_of(words, word)].0 = role;
        }
        rest = if tail.is_empty() {
            tail
        } else {
            tail.split_at(1).1
        };
    }
}

/// The place of a word, which must be in the other table: it is the compiler that asks.
const fn place_of(words: &[Slot; SIZE], word: &[u8]) -> usize {
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
    while !same(words[at].word, word) {
        assert!(
            !words[at].word.is_empty(),
            "a word that the classifier does not know"
        );
        at = next_slot(at);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::super::{Callee, lists};
    use super::*;
    use crate::{Family, Flags, LexMode};

    fn lookup(word: &str) -> WordId {
        let hash = word.bytes().fold(WordHash::START, WordHash::add);
        super::super::find(word.as_bytes(), hash)
    }

    /// What the classifier says differs, waits, asks the server or the session is not stable.
    #[test]
    fn no_stable_function_has_an_effect() {
        for word in STABLE.split_ascii_whitespace() {
            let effect = lookup(word).effect();
            // The database is part of the session.
            if !matches!(word, "DATABASE" | "SCHEMA") {
                assert_eq!(effect, Flags::empty(), "{word}");
            }
        }
    }

    /// A stable function is one of a family at least; what opens parentheses calls nothing.
    #[test]
    fn lists_are_those_of_the_servers() {
        let modes = [
            LexMode::new(Family::MySql, 90_704),
            LexMode::new(Family::MariaDb, 101_119),
        ];
        for word in STABLE.split_ascii_whitespace() {
            assert_eq!(lookup(word).role(), Role::Stable, "{word}");
            let known = |mode| lookup(word).callee(mode, true, false) != Callee::Stored;
            assert!(modes.iter().any(known), "{word}");
        }
        for word in OPENS.split_ascii_whitespace() {
            assert_eq!(lookup(word).role(), Role::Opens, "{word}");
            let builtin = |mode| lookup(word).callee(mode, true, false) == Callee::Builtin;
            // MySQL's VALUES(column) is NULL outside of INSERT.
            assert!(word == "VALUES" || !modes.iter().any(builtin), "{word}");
        }
    }

    /// Every built-in that is not allowed, so that a change of the lists is seen.
    #[test]
    fn what_is_left_out() {
        let all = [
            lists::BUILTIN_BOTH,
            lists::BUILTIN_MYSQL,
            lists::BUILTIN_MARIADB,
        ];
        let left: Vec<&str> = all
            .iter()
            .flat_map(|list| list.split_ascii_whitespace())
            .filter(|word| lookup(word).role() == Role::Unlisted)
            .collect();
        let expected = "\
            ADDTIME BENCHMARK CONNECTION_ID CONVERT_TZ CURDATE CURRENT_DATE CURRENT_ROLE \
            CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURTIME DEFAULT FOUND_ROWS GET_LOCK \
            IS_FREE_LOCK IS_USED_LOCK LAST_INSERT_ID LOAD_FILE LOCALTIME LOCALTIMESTAMP MAKETIME \
            MASTER_POS_WAIT NAME_CONST NOW RAND RANDOM_BYTES RELEASE_ALL_LOCKS RELEASE_LOCK \
            ROW_COUNT SEC_TO_TIME SESSION_USER SLEEP STR_TO_DATE SUBTIME SYSDATE SYSTEM_USER TIME \
            TIMEDIFF UNIX_TIMESTAMP USER UTC_DATE UTC_TIME UTC_TIMESTAMP UUID UUID_SHORT VERSION \
            CURRENT_ROLE_IN CURRENT_USER_IN ICU_VERSION JSON_STORAGE_FREE JSON_STORAGE_SIZE \
            PS_CURRENT_THREAD_ID PS_THREAD_ID ROLES_GRAPHML SOURCE_POS_WAIT \
            VALIDATE_PASSWORD_STRENGTH VERSION_WITH_UPDATE WAIT_FOR_EXECUTED_GTID_SET \
            BINLOG_GTID_POS DECODE_HISTOGRAM DES_DECRYPT DES_ENCRYPT ENCRYPT LASTVAL \
            MASTER_GTID_WAIT NEXTVAL OLD_PASSWORD PASSWORD ROWNUM SETVAL SYS_GUID VALUE \
            WSREP_LAST_SEEN_GTID WSREP_LAST_WRITTEN_GTID WSREP_SYNC_WAIT_UPTO_GTID";
        let expected: Vec<&str> = expected.split_ascii_whitespace().collect();
        assert_eq!(left, expected);
    }
}
