//! [`Credentials`] by munge.

use std::sync::Arc;

use gpuos_host::munge::{self, may_be_credential};

use crate::session::{Credentials, Opened, Refusal};

/// munge on this node, or what stands for it in a test. Its credentials can be read by the user of this process only, which is root
/// but for labs, and once on each node. munge encrypts them if its default cipher is not `none`, as the secrecy of the nonces needs.
#[derive(Clone)]
pub struct Munge(pub Arc<dyn munge::Credentials>);

impl Credentials for Munge {
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.0
            .seal(payload)
            .map(String::into_bytes)
            .map_err(refusal)
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, Refusal> {
        // What strangers send costs munge no time.
        if !may_be_credential(credential) {
            return Err(Refusal::Refused("it has not the form of one".into()));
        }
        let opened = self.0.open(credential).map_err(refusal)?;
        Ok(Opened {
            uid: opened.uid,
            payload: opened.payload,
        })
    }
}

fn refusal(error: munge::Error) -> Refusal {
    match error.is_absence() {
        true => Refusal::Absent(error.to_string()),
        false => Refusal::Refused(error.to_string()),
    }
}
