//! How many connections there may be.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Limits of connections at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of all users but root together.
    pub users: usize,
    /// Of one user other than root.
    pub one_user: usize,
    /// Of root: kept free of what users do.
    pub root: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            users: 32,
            one_user: 8,
            root: 64,
        }
    }
}

/// Counts connections by user.
#[derive(Clone, Default, Debug)]
pub(super) struct Gate {
    open: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// A connection that was let in; it is out when this is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Gate,
    uid: u32,
}

impl Gate {
    /// Lets a connection in, or `None` where there are too many.
    pub(super) fn enter(&self, uid: u32, limits: Limits) -> Option<Pass> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.get(&uid).copied().unwrap_or(0);
        let users: usize = open
            .iter()
            .filter(|(uid, _)| **uid != 0)
            .map(|(_, n)| n)
            .sum();
        let free = match uid {
            0 => own < limits.root,
            _ => own < limits.one_user && users < limits.users,
        };
        if !free {
            return None;
        }
        open.insert(uid, own + 1);
        Some(Pass {
            gate: self.clone(),
            uid,
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut open = self
            .gate
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.uid);
            }
        }
    }
}
