//! A thread for what takes as long as the program's work does, so that who talks to gpuosd listens meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{mover, process, vmm};

type Work = Box<dyn FnOnce() + Send>;

/// The thread, once it was needed.
#[derive(Default)]
pub(crate) struct Aside(Option<Sender<Work>>);

impl Aside {
    /// Has something done. What comes of it is told; nothing is where an error of gpuos ended it, and then the process is pinned.
    pub(crate) fn begin<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (tell, told) = channel();
        let work = move || match catch_unwind(AssertUnwindSafe(work)) {
            // Nobody may listen any more.
            Ok(done) => drop(tell.send(done)),
            Err(_) => process::pin(format_args!(
                "an error of gpuos ended what waits for the program's work"
            )),
        };
        if self.0.is_none() {
            let (orders, from) = channel::<Work>();
            let run = move || {
                // It gives memory back while other threads may capture.
                vmm::relax();
                from.into_iter().for_each(|work| work());
            };
            self.0 = mover::thread("gpuos-aside", run).is_ok().then_some(orders);
        }
        match &self.0 {
            Some(orders) => {
                if let Err(unsent) = orders.send(Box::new(work)) {
                    (unsent.0)();
                }
            }
            // Nobody listens meanwhile, as no thread can be started.
            None => work(),
        }
        told
    }
}
