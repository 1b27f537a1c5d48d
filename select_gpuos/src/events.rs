//! What slurmctld reports beside `job_test`: jobs that start, change and end, and tables and files that are read anew.

use std::ffi::c_void;

use slurm_ffi::conf;
use slurm_ffi::handles::Job;

use crate::abi::source::Source;
use crate::decide::mix::Spare;
use crate::decide::note::{Decision, Noting};
use crate::engine::{self, Engine};
use crate::read::settings;

/// A job is about to start on the nodes that it was given last.
pub fn job_starts(record: *mut c_void) {
    with_job(
        record,
        |engine| engine.is_last_decided(record),
        Engine::note_start,
    );
}

/// A job has, or no longer has, what its record says.
pub fn job_holds(record: *mut c_void) {
    with_job(record, Engine::reads_records, |engine, source, job| {
        let (site, trust) = (&engine.site, &mut engine.trust);
        engine.cluster.note_holdings(site, trust, source, job);
    });
}

/// A job ends.
pub fn job_ends(record: *mut c_void) {
    // Before the records are trusted no job stands in the ledger.
    with_job(record, Engine::reads_records, |engine, source, job| {
        engine.cluster.note_end(&engine.site, job);
        engine.cluster.mix_works(source, Spare::End);
    });
}

/// Runs `work` on a job that slurmctld reports, where its record may be read.
fn with_job(
    record: *mut c_void,
    may_read: impl FnOnce(&Engine) -> bool,
    work: impl FnOnce(&mut Engine, &Source<'_>, Job<'_>),
) {
    engine::with(|engine| {
        if !may_read(engine) {
            return;
        }
        // SAFETY: slurmctld reports its own record of a job, under its job and node write locks, until this returns.
        let (source, job) = unsafe {
            let source = engine.source();
            (source, source.job_at(record))
        };
        if let Some(job) = job {
            work(engine, &source, job);
        }
    });
}

/// The node table is being rebuilt; Slurm reports every running job again afterwards.
pub fn forget_nodes() {
    engine::with(|engine| {
        engine.probe_once();
        engine.forget();
        engine.open_records();
        engine.keep_reasons();
    });
}

/// Reads the configuration files again.
pub fn reload() {
    engine::with(|engine| {
        let site = &mut engine.site;
        let steered = site.steers();
        let mig = std::mem::take(&mut site.settings.config.mig);
        site.settings = settings::load(&site.fields);
        if site.settings.broken || site.settings.absent {
            // Which GPUs are MIG-switchable is as true as it was, and nobody is to be given one twice.
            site.settings.config.mig = mig;
        }
        engine.cluster.standing.reload();
        if site.steers() != steered {
            site.settings.announce(site.release, site.layout);
        }
        engine.cluster.reload(&engine.site);
        engine.open_records();
        engine.keep_reasons();
    });
}

impl Engine {
    fn reads_records(&self) -> bool {
        self.trust.reads_records()
    }

    /// Whether a job that starts is the one that was decided last: its record was trusted then.
    fn is_last_decided(&self, record: *mut c_void) -> bool {
        let pending = self.placing.pending.as_ref();
        pending.is_some_and(|pending| pending.is_of(record))
    }

    /// A job starts: writes down how its nodes came about.
    fn note_start(&mut self, source: &Source<'_>, job: Job<'_>) {
        let Some(pending) = self.placing.pending.take() else {
            return;
        };
        let decision = pending.decision();
        // Neither of these is about GPUs that the job asked for; one that takes whole nodes has them all the same.
        let apart = matches!(decision, Decision::Slices(_) | Decision::Held(_));
        let asked = source.one_type(job).filter(|_| !apart);
        // Looked at again after cons_tres wrote its selection.
        if asked.is_some() && !self.trusts_selection(source, job) {
            return;
        }
        let mut noting = Noting {
            site: &self.site,
            trust: &mut self.trust,
            cluster: &mut self.cluster,
            chosen: &mut self.placing.chosen,
            attempt: &mut self.placing.attempt,
            source,
            job,
        };
        match (decision, asked) {
            (Decision::Slices(instances), _) => noting.start_with_slices(instances),
            (decision, Some(gpus)) => noting.start(decision, gpus, &self.placing.holders),
            (decision, None) => noting.start_without_gpus(decision),
        }
    }

    fn open_records(&mut self) {
        let (site, cluster) = (&self.site, &mut self.cluster);
        let folder = conf::folder(Some(&site.fields));
        let count = site.settings.config.slurm.records;
        cluster.records.open(&folder, count, site.table.len());
        if site.settings.config.policy.weighs() {
            cluster.standing.recall(&mut cluster.records);
        }
    }
}
