//! What a lab has of the process that made it: the guard that ends the one with the other, and children to be waited for.

use std::process::Child;
use std::sync::Mutex;

use crate::error::LabError;
use crate::guard::Guard;
use crate::spec::LabSpec;
use crate::store::{self, Record};
use crate::suite;
use crate::sys;

/// The guard of a lab that ends with its value, and its children.
#[derive(Default)]
pub(crate) struct Hold {
    guard: Option<Guard>,
    /// Processes started here: kept to be waited for, so that none stays as a zombie.
    children: Mutex<Vec<Child>>,
}

/// A lab of either kind.
pub(crate) trait Held {
    /// What it keeps of itself, and its hold.
    fn held(&mut self) -> (&mut Record, &mut Hold);
}

/// Takes a name and a folder for a lab and has it built. Nothing is left where that fails.
pub(crate) fn up<L: Held>(
    spec: &LabSpec,
    build: impl FnOnce(Record) -> Result<L, LabError>,
) -> Result<L, LabError> {
    if !sys::is_root() {
        return Err(LabError::NotRoot);
    }
    let record = store::claim(spec)?;
    let mut guard = Guard::start(&record.id, &record.dir, &suite::cache_dir())?;
    match build(record.clone()) {
        Ok(mut lab) => {
            let (record, hold) = lab.held();
            if spec.detached {
                record.owner = None;
                record.write(&record.dir)?;
                guard.release();
            } else {
                hold.guard = Some(guard);
            }
            Ok(lab)
        }
        Err(e) => {
            let _ = record.clean();
            guard.finish();
            Err(e)
        }
    }
}

impl Hold {
    /// Whether the lab ends with its value.
    pub(crate) fn ends_it(&self) -> bool {
        self.guard.is_some()
    }

    /// Keeps a child, and waits for those that have ended.
    pub(crate) fn adopt(&self, child: Child) {
        if let Ok(mut children) = self.children.lock() {
            children.retain_mut(|old| !matches!(old.try_wait(), Ok(Some(_))));
            children.push(child);
        }
    }

    /// Ends all processes of the lab and removes its files.
    pub(crate) fn end(&mut self, record: &Record) -> Result<(), LabError> {
        let result = record.clean();
        if let Ok(mut children) = self.children.lock() {
            for mut child in children.drain(..) {
                // All were killed; waiting could only hang on one that the kernel holds.
                let _ = match result {
                    Ok(()) => child.wait().map(Some),
                    Err(_) => child.try_wait(),
                };
            }
        }
        if let Some(mut guard) = self.guard.take() {
            guard.finish();
        }
        result
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let children = self.children.get_mut().map(std::mem::take);
        let children = children.unwrap_or_default();
        if !children.is_empty() {
            // The daemons live on. While this process does, someone must wait for them.
            std::thread::spawn(move || {
                for mut child in children {
                    let _ = child.wait();
                }
            });
        }
    }
}
