//! Statements that Millrace answers itself (variables of its own, questions about routes), prepared.

use std::rc::Rc;

use millrace_engine::image::prepared::ClientStatement;
use millrace_protocol::resultset::TextResult;
use millrace_sql::{Flags, Kind, Statement};

use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::route;

impl Session {
    /// Prepares what Millrace answers itself.
    pub(in crate::session) async fn prepare_own(
        &mut self,
        text: &[u8],
        class: &Statement,
    ) -> Result<(), Abort> {
        if text.contains(&b'?') {
            let text = "Millrace: its own statements take no parameters";
            return Err(ClientError::client(1235, b"42000", text).into());
        }
        let mut class = class.clone();
        class.flags |= Flags::MILLRACE_VARIABLE;
        let result = match class.kind {
            Kind::Set => TextResult::new(Vec::new()),
            _ if route::is_own(text) => self.route_table(),
            _ => self.variable_table(text),
        };
        let id = self.image.statements.next_id();
        let mut out = Vec::new();
        result.encode_prepare(
            &mut out,
            1,
            self.client.capabilities,
            id,
            self.idle_status(),
        );
        let statement = ClientStatement {
            uid: self.worker.prepared.next_statement_uid(),
            shared: false,
            unused: None,
            text: text.into(),
            class: Rc::new(class),
            context: self.image.vars.state.clone(),
            params: 0,
            types: Box::default(),
            types_changed: 0,
            long_data: Vec::new(),
            bad_long_data: false,
            cursor: false,
            answered: false,
        };
        self.image.statements.add(id, statement);
        self.send(&out).await
    }

    /// Executes it.
    pub(in crate::session) async fn execute_own(&mut self, id: u32) -> Result<(), Abort> {
        let Some(statement) = self.image.statements.get(id) else {
            return Err(Abort::Ended);
        };
        let (class, text) = (statement.class.clone(), statement.text.clone());
        self.running.answers_binary = true;
        let done = if let Some(asked) = route::explained(&text) {
            self.explain_route(asked).await
        } else if route::asks_for_last(&text) {
            self.show_route().await
        } else {
            self.own_variable(&class, &text).await
        };
        self.running.answers_binary = false;
        done
    }
}
