//! The way of one statement: which servers may run it ([`route_input`], [`directions`]), how it comes by a connection
//! ([`checkout`]) and what goes ahead of it there ([`setup`]), how it is sent and its answer handed on ([`attempt`],
//! [`relay`]), what it leaves ([`fold`], [`readback`]), and what an error or a lost connection means for it
//! ([`refused`], [`ended`]).

pub(super) mod access;
pub(super) mod attempt;
pub(super) mod checkout;
pub(super) mod consistency;
pub(super) mod directions;
pub(super) mod ended;
pub(super) mod execution;
pub(super) mod fill;
pub(super) mod filling;
pub(super) mod fold;
pub(super) mod fold_variables;
pub(super) mod foresee;
pub(super) mod gone_database;
pub(super) mod measuring;
pub(in crate::session) mod next_transaction;
pub(super) mod prepared;
pub(super) mod projection;
pub(super) mod readback;
pub(super) mod refused;
pub(super) mod refused_state;
pub(super) mod relay;
pub(super) mod restore_numbers;
pub(super) mod role_lost;
pub(super) mod route;
pub(super) mod route_input;
pub(crate) mod rule_actions;
pub(super) mod running;
pub(super) mod sequences;
pub(super) mod setup;
pub(super) mod shown;
pub(super) mod steps;
pub(super) mod without_primary;
