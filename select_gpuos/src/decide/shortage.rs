//! Answers of cons_tres that give a job less than it asks for, or than it would have without gpuos: how many GPUs that are is asked
//! before, and the answer is taken back.

use gpuos_model::messages::Message;
use gpuos_placement::least::Shortage;
use gpuos_placement::plan::GpuShape;
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::decide::{Decide, Placing};
use crate::gres::enough;
use crate::messages;
use crate::read::request::Wanted;
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

impl Decide<'_, '_> {
    /// Takes back an answer that gives the job less than it asks for; whether it was one.
    pub fn takes_back(&mut self) -> bool {
        let (frame, read) = (self.frame, (self.site, &*self.trust));
        let taken =
            (self.placing).takes_back(frame, read, self.plain, |job, given, asked, place| {
                messages::too_few_offered(job, given, asked, place)
            });
        if taken {
            self.placing.steering.restore_candidates(frame);
        }
        taken
    }

    /// Whether it depends on the nodes how many GPUs a job that starts has: on their sockets and cores, on how large whole ones are, on how many
    /// of them are left within a range, or on how many its tasks need.
    pub fn depends_on_nodes(&self, wanted: &Wanted) -> bool {
        if !self.frame.is_start() || wanted.required() {
            return false;
        }
        let (request, snapshot) = (&wanted.request, &self.cluster.snapshot);
        match request.gpus {
            // By cores that come with a task, some releases give GPUs for more tasks than there are.
            GpuShape::PerSocket { .. } | GpuShape::PerTask { .. } => true,
            _ if request.whole_nodes && snapshot.has_sizes() => true,
            GpuShape::PerNode(_) if wanted.nodes > request.min_nodes => true,
            GpuShape::PerNode(gpus) => {
                let (job, least) = (self.frame.job, request.min_nodes.max(1));
                request.max_nodes > least
                    && job.tasks() > least
                    && (!request.required_nodes.is_empty()
                        || snapshot.has_fewer_cpus(gpus, job.min_cpus().div_ceil(least)))
            }
            _ => false,
        }
    }

    /// Has cons_tres give the job GPUs as Slurm asked, notes how many they are, and takes all of it back. How many nodes it took; 0 =
    /// none, or they are not known.
    #[cold]
    pub fn ask_plainly(&mut self) -> u32 {
        let frame = self.frame;
        let code = frame.call.without_preemption(|| frame.call.forward());
        let given = match code {
            0 => enough::given(frame, self.site, self.trust),
            _ => None,
        };
        let nodes = given.map_or(0, |_| frame.candidates.count() as u32);
        if given.is_some() {
            enough::take_back(frame);
        }
        frame.call.unanswered();
        self.placing.steering.restore_candidates(frame);
        self.plain = given.unwrap_or(0);
        nodes
    }
}
