//! The samples that the probe inside slurmctld leaves in a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

const MAGIC: u64 = 0x3174_7365_746a_6f62;
const HEADER: usize = 16;
const RECORD: usize = 48;

/// Which function of the select plugin was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `select_p_job_test`
    JobTest,
    /// `select_p_select_nodeinfo_set`: a job has got its nodes.
    NodeinfoSet,
    /// `select_p_job_fini`: a job ends.
    JobFini,
    /// `select_p_job_test` of cons_tres, called by gpuos.
    Inner,
}

/// What a `job_test` was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Start now.
    RunNow,
    /// Could it ever run: asked at submission.
    TestOnly,
    /// When could it start.
    WillRun,
    /// Anything else, for example reservations.
    Other,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Elapsed time in nanoseconds.
    pub wall_ns: u64,
    /// Processor time of the calling thread in nanoseconds.
    pub cpu_ns: u64,
    /// Function.
    pub kind: Kind,
    /// Question, for [`Kind::JobTest`].
    pub ask: Ask,
    /// Fewest nodes that the job wants, for [`Kind::JobTest`].
    pub min_nodes: u32,
    /// The plugin's answer; 0 = yes.
    pub code: i32,
    /// Nodes among which it could choose.
    pub candidates: u32,
    /// Time that the plugin behind spent in cons_tres, and how often it called it: gpuos only.
    pub inner_ns: u64,
    /// See [`Sample::inner_ns`].
    pub inner_calls: u32,
}

/// The file of one slurmctld.
pub struct Samples {
    /// Written by the probe.
    pub path: PathBuf,
    /// How many were read.
    cursor: usize,
}

impl Samples {
    /// Of a file that may not be there yet.
    pub fn new(path: PathBuf) -> Samples {
        Samples { path, cursor: 0 }
    }

    /// The samples since the last call.
    pub fn take(&mut self) -> Result<Vec<Sample>> {
        let all = self.read()?;
        self.cursor += all.len();
        Ok(fold(all))
    }

    /// The samples since the last [`Samples::take`].
    pub fn peek(&self) -> Result<Vec<Sample>> {
        Ok(fold(self.read()?))
    }

    fn read(&self) -> Result<Vec<Sample>> {
        let shown = self.path.display();
        let file = File::open(&self.path)
            .with_context(|| format!("no samples in {shown}: was the probe loaded?"))?;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)
            .with_context(|| format!("cannot read {shown}"))?;
        ensure!(
            word(&header, 0) == MAGIC,
            "{shown} is not a file of samples"
        );
        let new = (word(&header, 8) as usize).saturating_sub(self.cursor);
        let mut bytes = vec![0; new * RECORD];
        file.read_exact_at(&mut bytes, (HEADER + self.cursor * RECORD) as u64)
            .with_context(|| format!("cannot read {shown}"))?;
        Ok(bytes.chunks_exact(RECORD).map(sample).collect())
    }
}

/// Adds the calls into cons_tres to the job_test that made them, which is noted after them.
fn fold(all: Vec<Sample>) -> Vec<Sample> {
    let mut folded = Vec::new();
    let (mut ns, mut calls) = (0, 0);
    for mut sample in all {
        match sample.kind {
            Kind::Inner => {
                ns += sample.wall_ns;
                calls += 1;
            }
            Kind::JobTest => {
                (sample.inner_ns, sample.inner_calls) = (ns, calls);
                (ns, calls) = (0, 0);
                folded.push(sample);
            }
            Kind::NodeinfoSet | Kind::JobFini => folded.push(sample),
        }
    }
    folded
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn sample(record: &[u8]) -> Sample {
    Sample {
        wall_ns: word(record, 0),
        cpu_ns: word(record, 8),
        kind: match half(record, 16) {
            0 => Kind::JobTest,
            1 => Kind::NodeinfoSet,
            3 => Kind::Inner,
            _ => Kind::JobFini,
        },
        ask: match half(record, 20) & 0xff {
            0 => Ask::RunNow,
            1 => Ask::TestOnly,
            2 => Ask::WillRun,
            _ => Ask::Other,
        },
        min_nodes: half(record, 24),
        code: half(record, 28) as i32,
        candidates: half(record, 32),
        inner_ns: 0,
        inner_calls: 0,
    }
}
