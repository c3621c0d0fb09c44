//! Why something was not served, not kept, or removed: each in words, for whoever asks "why no hits?".

use std::fmt;

macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $case:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = $text] $(#[$doc])* $case,)*
        }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$case),*];

            /// Its name in the code, for labels of metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$case => stringify!($case),)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$case => $text,)*
                })
            }
        }
    };
}

reasons! {
    /// Why a statement is not cached at all, as it is and where it runs.
    Never {
        /// Rule 1.
        NotASelect = "only SELECT is cached",
        /// Rule 5.
        InTransaction = "it runs in a transaction",
        /// Rule 5.
        NoAutocommit = "autocommit is off",
        /// Rule 1.
        TablesLocked = "the session holds LOCK TABLES",
        /// Rule 1: it may be rolled back, and no log tells.
        ReadUncommitted = "the session reads what is not committed",
        /// Rule 5.
        Serializable = "the session is SERIALIZABLE, so that the statement takes locks",
        /// Rule 1.
        LocksRows = "it has FOR UPDATE, FOR SHARE or LOCK IN SHARE MODE",
        /// Rule 1.
        Into = "it has INTO",
        /// Rule 1.
        Variables = "it reads or sets a variable",
        /// A function that depends on the clock, the connection, randomness or the server, or that is not known.
        Function = "it calls a function whose value is not the same each time, or that is not known",
        /// A temporary table of the session may stand in the way of a name.
        TemporaryTable = "the session has a temporary table of that name",
        /// A view, system table, or one of an engine that does not log.
        Table = "it reads something else than base tables of InnoDB that the log tells of",
        /// Not understood.
        NotUnderstood = "the statement was not understood",
        /// SQL_NO_CACHE, a hint or a rule.
        Forbidden = "a hint, a rule or SQL_NO_CACHE says so",
    }
}

reasons! {
    /// Why there was no hit.
    Miss {
        Absent = "it is not in the cache",
        Filling = "it is being filled",
        NotYet = "the log has not told yet of everything that the result may show",
        Behind = "the log has not told yet of everything that the session must see",
        Written = "its rows were written a moment ago",
        Unknown = "it is not known what the session must see",
        Stopped = "the log is not followed",
        Checked = "it is read again, to be compared (cache.verify)",
        Silent = "nothing was heard of the log for too long",
    }
}

reasons! {
    /// Why a miss does not fill.
    NoFill {
        Stopped = "the log is not followed",
        FirstSight = "it was asked for the first time",
        Present = "it is in the cache, and cannot be served yet",
        Crowded = "too many wait for it",
        QuickerAsked = "it is being filled, and a server is likely to answer sooner",
        TooManyFills = "too many results are being read into the cache",
        Undefined = "a table was changed, and the tables have not been read again",
        Resting = "what was cached of this statement changed before it was used",
    }
}

reasons! {
    /// Why a result was not kept.
    Refused {
        /// Rule 2.
        Stale = "the server may not have had the last changes of its tables",
        Incomparable = "the server's position says nothing about the log's",
        TooLarge = "the result is too large",
        NotWorthIt = "it saves less time than what is in the cache",
        Compared = "it was read to be compared with what is in the cache",
        Dropped = "everything was dropped meanwhile",
    }
}

reasons! {
    /// What removed an entry.
    Cause {
        /// Rule 3: a row within its keys.
        Key = "a row that it depends on changed",
        /// Rule 3: a change that is known by table only, DDL among them.
        Table = "its table changed",
        /// GRANT and the like.
        Rights = "rights changed",
        Gap = "the log could not be followed further",
        NotUnderstood = "something in the log was not understood",
        Wrong = "a result was not what a server answered (cache.verify)",
        Unlogged = "rows were written that the log may not tell of",
        Expired = "its time (`ttl`) was over",
        Flush = "FLUSH CACHE",
        Evicted = "its memory was needed",
    }
}
