//! Handles: numbers that lead nowhere, so that a wrong or old one is an error and no crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Answer, code};

/// Things of one kind by their handles.
pub(crate) struct Table<T> {
    kind: u64,
    inner: Mutex<(u64, BTreeMap<u64, Arc<T>>)>,
}

impl<T> Table<T> {
    /// An empty table. Handles of different kinds are different.
    pub(crate) const fn new(kind: u8) -> Table<T> {
        Table {
            kind: (kind as u64) << 48 | 0x1000,
            inner: Mutex::new((0, BTreeMap::new())),
        }
    }

    /// A handle that was never given before, for something that [`Table::insert`] brings.
    pub(crate) fn fresh(&self) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 += 1;
        self.kind + inner.0 * 16
    }

    /// Puts something under a handle.
    pub(crate) fn insert(&self, handle: u64, thing: Arc<T>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.insert(handle, thing);
    }

    /// Puts something under a new handle.
    pub(crate) fn add(&self, thing: T) -> u64 {
        let handle = self.fresh();
        self.insert(handle, Arc::new(thing));
        handle
    }

    /// What a handle means.
    pub(crate) fn get(&self, handle: u64) -> Answer<Arc<T>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.get(&handle).cloned().ok_or(code::INVALID_HANDLE)
    }

    /// Ends a handle.
    pub(crate) fn remove(&self, handle: u64) -> Answer<Arc<T>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.remove(&handle).ok_or(code::INVALID_HANDLE)
    }

    /// Looks at all of them.
    pub(crate) fn each(&self, look: impl FnMut(&T)) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.values().map(Arc::as_ref).for_each(look);
    }

    /// Whether there is one that is `wanted`.
    pub(crate) fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.values().any(|thing| wanted(thing))
    }

    /// Ends the handles of things that are `wanted`, and gives these.
    pub(crate) fn drain(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<u64> = inner
            .1
            .iter()
            .filter(|(_, thing)| wanted(thing))
            .map(|(handle, _)| *handle)
            .collect();
        handles
            .iter()
            .filter_map(|handle| inner.1.remove(handle))
            .collect()
    }
}
