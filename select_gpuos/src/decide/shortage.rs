//! Answers of cons_tres that give a job less than it asks for, or than it would have without gpuos: how many GPUs that are is asked
//! before, and the answer is taken back.

use gpuos_model::messages::Message;
use gpuos_placement::least::Shortage;
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::decide::Placing;
use crate::gres::enough;
use crate::read::site::Site;
use crate::read::trust::LayoutTrust;

/// Makes a message of a shortage: the job, GPUs given and asked for, and where.
pub type SayShortage = fn(u32, u64, u64, &str) -> Message;

impl Placing {
    /// Takes back an answer that gives the job less than it asks for, or than the `plain` GPUs that it would have without gpuos, but for
    /// the candidates, which are the caller's; whether it was one.
    pub fn takes_back(
        &mut self,
        frame: &Frame<'_>,
        (site, trust): (&Site, &LayoutTrust),
        plain: u64,
        say: SayShortage,
    ) -> bool {
        let Some(short) = enough::shortage(frame, site, trust, plain) else {
            return false;
        };
        self.log_shortage(frame, &short, say);
        enough::take_back(frame);
        true
    }

    /// Has the log say that a job was given too little, once where it is tried again and again.
    #[cold]
    fn log_shortage(&mut self, frame: &Frame<'_>, short: &Shortage, say: SayShortage) {
        let job = frame.job.id();
        if self.short_logged.replace(job) == Some(job) {
            return;
        }
        let node = short.node.and_then(|node| frame.source.node(node));
        let place = match node {
            Some(node) => format!("on node {}", node.name()),
            None => "in all".to_owned(),
        };
        log::info(&say(job, short.given, short.asked, &place));
    }
}
