//! The closed sets of label values. A value is an index into an array of counters.

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl $name {
            /// All values, in order.
            pub const ALL: &[$name] = &[$($name::$variant,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The label's value.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            pub(crate) fn index(self) -> usize {
                self as usize
            }
        }
    };
}

labels! {
    /// What kind of statement ran.
    StatementKind {
        /// Reads: SELECT, SHOW, EXPLAIN, …
        Read => "read",
        /// Changes rows.
        Write => "write",
        /// Defines schema objects.
        Ddl => "ddl",
        /// CALL.
        Call => "call",
        /// BEGIN, COMMIT, ROLLBACK, savepoints, XA.
        Transaction => "transaction",
        /// SET, USE, PREPARE and others that concern the session.
        Session => "session",
        /// Anything else.
        Other => "other",
    }
}

labels! {
    /// Why a session keeps a server connection.
    PinReason {
        /// An open transaction.
        Transaction => "transaction",
        /// A temporary table.
        TemporaryTable => "temporary_table",
        /// LOCK TABLES, FLUSH TABLES WITH READ LOCK, LOCK INSTANCE.
        LockTables => "lock_tables",
        /// GET_LOCK.
        UserLock => "user_lock",
        /// An open HANDLER.
        Handler => "handler",
        /// An open cursor.
        Cursor => "cursor",
        /// An XA transaction.
        Xa => "xa",
        /// A user variable whose value is not known.
        UserVariable => "user_variable",
        /// Session state that cannot be restored elsewhere.
        SessionState => "session_state",
        /// What the connection measures: profiling, the optimizer trace, counters since FLUSH STATUS.
        Diagnostics => "diagnostics",
        /// Long data of a prepared statement, LOAD DATA LOCAL, or a bulk command under way.
        DataInFlight => "data_in_flight",
        /// The session's login had to be relayed: the connection is its own.
        RelayedLogin => "relayed_login",
        /// A replication command.
        Replication => "replication",
        /// A statement that is not understood.
        NotUnderstood => "not_understood",
    }
}

labels! {
    /// How a wait for a pooled connection ended.
    PoolWait {
        /// A connection became free, or could be opened.
        Served => "served",
        /// The deadline passed.
        TimedOut => "timed_out",
        /// The queue was full.
        Refused => "refused",
        /// The client went away.
        Abandoned => "abandoned",
    }
}

labels! {
    /// How a wait for a replica's position ended.
    PositionWait {
        /// The replica reached it in time.
        Reached => "reached",
        /// It did not.
        TimedOut => "timed_out",
        /// The wait failed.
        Failed => "failed",
    }
}

labels! {
    /// What was tried again.
    RetryKind {
        /// A statement that had not been sent, on another connection.
        Unsent => "unsent",
        /// A read whose result had not begun, elsewhere.
        Read => "read",
        /// A write that its server provably did not run, elsewhere.
        Write => "write",
        /// A read after a failed wait, elsewhere.
        Position => "position",
        /// A prepared statement the server no longer knew.
        Reprepare => "reprepare",
    }
}

labels! {
    /// Why a transaction that lost its server was not run again on another.
    ReplayFailure {
        /// More statements or bytes than the limits allow.
        TooLarge => "too_large",
        /// Open for longer than the limit allows.
        TooOld => "too_old",
        /// It did what cannot be done again.
        NotReplayable => "not_replayable",
        /// A statement was answered differently.
        Differs => "differs",
        /// No server could be had in time.
        NoServer => "no_server",
    }
}

labels! {
    /// Whose fault an error was.
    Side {
        /// The client's.
        Client => "client",
        /// The server's: its own error, passed on.
        Server => "server",
        /// Millrace's: a limit, no server, a failed connection.
        Proxy => "proxy",
    }
}

labels! {
    /// What kind of error.
    ErrorClass {
        /// SQLSTATE 42: syntax, unknown names, privileges on them.
        Syntax => "syntax",
        /// SQLSTATE 28, 0P: who may log in.
        Access => "access",
        /// SQLSTATE 21, 22, 23: values and constraints.
        Data => "data",
        /// SQLSTATE 40, 25: deadlocks, rolled back or read-only transactions.
        Transaction => "transaction",
        /// SQLSTATE 08: connections and packets.
        Connection => "connection",
        /// SQLSTATE 70: interrupted or killed.
        Interrupted => "interrupted",
        /// A limit of Millrace's.
        Limit => "limit",
        /// No server to run it.
        NoServer => "no_server",
        /// Anything else.
        Other => "other",
    }
}

impl ErrorClass {
    /// The class of a server's error by its SQLSTATE.
    pub fn from_sqlstate(state: &[u8]) -> Self {
        match state.get(..2).unwrap_or(state) {
            b"42" => ErrorClass::Syntax,
            b"28" | b"0P" => ErrorClass::Access,
            b"21" | b"22" | b"23" => ErrorClass::Data,
            b"25" | b"40" => ErrorClass::Transaction,
            b"08" => ErrorClass::Connection,
            b"70" => ErrorClass::Interrupted,
            _ => ErrorClass::Other,
        }
    }
}

labels! {
    /// How a login ended.
    LoginOutcome {
        /// Checked against what is known of the account.
        Known => "known",
        /// Checked by a server.
        Server => "server",
        /// The handshake was relayed to a connection of the client's own.
        Relayed => "relayed",
        /// Denied.
        Denied => "denied",
        /// The client took too long.
        TimedOut => "timed_out",
        /// The client left or sent something wrong.
        Aborted => "aborted",
        /// Over the limit of clients.
        TooMany => "too_many",
        /// No server could be asked.
        NoServer => "no_server",
    }
}
