//! The way of one statement: which servers may run it ([`route_input`], [`directions`]), how it comes by a connection
//! ([`checkout`]) and what goes ahead of it there ([`setup`]), how it is sent and its answer handed on ([`attempt`],
//! [`relay`]), what it leaves ([`fold`], [`readback`]), and what an error or a lost connection means for it
//! ([`refused`], [`ended`]).

pub(crate) mod access;
pub(crate) mod attempt;
pub(crate) mod checkout;
pub(crate) mod consistency;
pub(crate) mod directions;
pub(crate) mod ended;
pub(crate) mod execution;
pub(crate) mod fold;
pub(crate) mod fold_variables;
pub(crate) mod gone_database;
pub(crate) mod measuring;
pub(crate) mod prepared;
pub(crate) mod readback;
pub(crate) mod refused;
pub(crate) mod refused_state;
pub(crate) mod relay;
pub(crate) mod restore_numbers;
pub(crate) mod role_lost;
pub(crate) mod route;
pub(crate) mod route_input;
pub(crate) mod rule_actions;
pub(crate) mod running;
pub(crate) mod sequences;
pub(crate) mod setup;
pub(crate) mod steps;
pub(crate) mod without_primary;
