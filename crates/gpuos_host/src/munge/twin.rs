//! [`Credentials`] in memory: a cluster's key, and for each node what it has read.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Credentials, Error, MAX_CREDENTIAL, MAX_PAYLOAD, Opened, may_be_credential};

/// A node's munged. It keeps nothing secret; it refuses what munge refuses.
#[derive(Debug)]
pub struct Twin {
    key: u64,
    uid: u32,
    made: Arc<AtomicU64>,
    read: Mutex<HashSet<u64>>,
    stopped: AtomicBool,
}

impl Twin {
    /// The first node of a cluster with this key, used by the user `uid`.
    pub fn new(key: u64, uid: u32) -> Twin {
        Twin {
            key,
            uid,
            made: Arc::default(),
            read: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Another node of the same cluster.
    pub fn other(&self, uid: u32) -> Twin {
        Twin {
            made: self.made.clone(),
            ..Twin::new(self.key, uid)
        }
    }

    /// munged stops answering, or answers again.
    pub fn set_stopped(&self, away: bool) {
        self.stopped.store(away, Ordering::Relaxed);
    }

    fn answers(&self) -> Result<(), Error> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(Error::NoAnswer("Failed to access socket".into())),
            false => Ok(()),
        }
    }
}

impl Credentials for Twin {
    fn seal(&self, payload: &[u8]) -> Result<String, Error> {
        self.answers()?;
        if payload.len() > MAX_PAYLOAD {
            return Err(Error::TooLong(payload.len()));
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!(
            "MUNGE:{:x}/{:x}/{number:x}/{hex}:",
            self.key, self.uid
        ))
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, Error> {
        self.answers()?;
        if credential.len() > MAX_CREDENTIAL || !may_be_credential(credential) {
            return Err(Error::Refused("Invalid credential format".into()));
        }
        let text = String::from_utf8_lossy(&credential[6..credential.len() - 1]);
        let parts: Vec<&str> = text.split('/').collect();
        let number = |at: usize| parts.get(at).and_then(|t| u64::from_str_radix(t, 16).ok());
        let known = (number(0), number(1), number(2), parts.get(3));
        let (Some(key), Some(uid), Some(number), Some(hex)) = known else {
            return Err(Error::Refused("Invalid credential format".into()));
        };
        if key != self.key {
            return Err(Error::Refused("Invalid credential".into()));
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if !read.insert(number) {
            return Err(Error::Replayed);
        }
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        };
        let payload: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
        Ok(Opened {
            payload: payload.ok_or_else(|| Error::Refused("Invalid credential".into()))?,
            uid: uid as u32,
            gid: uid as u32,
        })
    }
}
