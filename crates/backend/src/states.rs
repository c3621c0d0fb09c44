//! The session states of one worker: equal ones share memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use millrace_engine::state::{Basis, SessionState};

/// One worker's session states, so that equal ones share memory and compare by address.
#[derive(Debug, Default)]
pub struct States {
    known: RefCell<HashSet<Rc<SessionState>>>,
    bases: RefCell<Vec<Rc<Basis>>>,
}

impl States {
    /// The shared copy of `state`.
    pub fn share(&self, mut state: SessionState) -> Rc<SessionState> {
        self.share_basis(&mut state.basis);
        let mut known = self.known.borrow_mut();
        if let Some(shared) = known.get(&state) {
            return shared.clone();
        }
        if known.len() >= 64 && known.len().is_power_of_two() {
            known.retain(|state| Rc::strong_count(state) > 1);
        }
        let shared = Rc::new(state);
        known.insert(shared.clone());
        shared
    }

    fn share_basis(&self, basis: &mut Rc<Basis>) {
        let mut bases = self.bases.borrow_mut();
        if bases.iter().any(|known| Rc::ptr_eq(known, basis)) {
            return;
        }
        if let Some(known) = bases.iter().find(|known| *known == basis) {
            *basis = known.clone();
            return;
        }
        bases.retain(|known| Rc::strong_count(known) > 1);
        bases.push(basis.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_states_are_shared() {
        let states = States::default();
        let state = || SessionState {
            database: b"x".as_slice().into(),
            ..SessionState::default()
        };
        assert!(Rc::ptr_eq(&states.share(state()), &states.share(state())));
    }
}
