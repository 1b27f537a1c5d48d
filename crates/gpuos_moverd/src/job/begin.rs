//! Node and conductor of a job, when its roster is known.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::interval::choice::Limits;
use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_config::options::Every as Often;
use gpuos_core::job::JobId;
use gpuos_mover::node::Node;
use gpuos_mover::program::{Conductor, Every, Settings as Conducts};
use gpuos_mover::settings::Settings;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::{Error, Result as Stored};
use gpuos_store::job::JobStore;
use gpuos_store::store::Store;

use super::quota::Quota;
use super::restoring::{Place, Restorer};
use super::running::{Parts, Running};
use super::{Worker, other};
use crate::carried::JobRoster;

/// Begins them, with what the job wants and the site allows.
///
/// # Errors
/// A sentence: the roster contradicts itself, or the disk fails.
pub(super) fn running(worker: &mut Worker, roster: JobRoster) -> Result<Running, String> {
    let (Some(wish), Some(folder)) = (&worker.wish, &worker.folder) else {
        return Err("the folder for checkpoints is not there".into());
    };
    let (job, uid) = (other::of(worker), worker.start.uid);
    let own = roster.roster.index_of_seat[usize::from(worker.own_seat())];
    let nodes = worker.start.place.nodes;
    let store = worker.shared.store;
    let config = &worker.shared.config;
    let mut settings = Settings::new(
        job.clone(),
        uid,
        own,
        nodes,
        worker.session,
        roster.roster.sets.clone(),
    );
    settings.keep = config.keep;
    settings.only = roster.only;
    settings.beyond = roster.beyond;
    let of_own = roster.base.as_ref().filter(|base| base.job == *job);
    settings.above = of_own.map(|base| base.id);
    settings.passed = other::passed(worker);
    let of_other = roster.base.as_ref().filter(|base| base.job != *job);
    let passed = of_other.map(|base| other::passed_of(worker, &base.job));
    if config.max_gib > 0 {
        settings.limits.bytes = u64::from(config.max_gib) << 30;
    }
    let now = worker.now();
    let node = Node::new(store, &LinuxDisk, settings, now)?;
    let every = match wish.option.every {
        Often::Seconds(seconds) => Every::Fixed(u64::from(seconds.max(config.least_s)) * 1000),
        Often::Auto => Every::Auto {
            mtbf_s: f64::from(config.node_mtbf_hours) * 3600.0 / f64::from(nodes.max(1)),
            limits: limits(config),
        },
    };
    let conducts = Conducts {
        ready_ms: u64::from(config.ready_s) * 1000,
        least_ms: u64::from(config.least_s) * 1000,
        ..Conducts::new(own, nodes, worker.session, every)
    };
    let parts = store.job(job, uid).map_err(|error| error.to_string())?;
    let had = parts.kept().map_err(|error| error.to_string())?;
    let had = had.into_iter().map(|part| part.id).collect();
    let base = roster.base.as_ref().map(|base| {
        let parts = store.existing(&base.job)?;
        match parts.uid() == uid {
            true => Ok((base.id, of_base(store, parts, base.id)?)),
            false => Err(another_users(&base.job)),
        }
    });
    let base = base.transpose().map_err(|error: Error| error.to_string())?;
    let conductor = Conductor::new(conducts, now);
    let restorer = Restorer::start(Place {
        store,
        job: job.clone(),
        owner: (uid, wish.gid),
        base: roster.base.as_ref().map(|base| (base.id, base.job.clone())),
        folder: folder.clone(),
        to: worker.to.clone(),
        session: worker.session,
        before: worker.before.take(),
    });
    let restorer = restorer.map_err(|e| format!("cannot start a thread: {e}"))?;
    let quota = Quota::new(store, uid, config, &roster.roster.sets, own);
    let mut running = Running::new(node, conductor, (roster, own), parts, restorer);
    running.limit_by(quota);
    running.has(had);
    running.ask_each(u64::from(config.least_s.max(1)) * 1000);
    running.begin_from(wish.option.restart, base, passed.unwrap_or_default());
    running.host_in(store, worker.start.job.clone());
    Ok(running)
}

/// Whose parts of a checkpoint are here: this node's own, and those that it hosts.
fn of_base(
    store: &'static Store<LinuxDisk>,
    parts: JobStore<'static, LinuxDisk>,
    id: CheckpointId,
) -> Stored<Parts> {
    let guests = store.guests(&parts)?.into_iter();
    let all = [parts].into_iter().chain(guests.map(|guest| guest.parts));
    // Where it has none of that checkpoint there is no manifest.
    let all = all.filter_map(|parts| Some((parts.manifest(id).ok()?.node, parts)));
    Ok(all.collect())
}

fn another_users(job: &JobId) -> Error {
    let tried = format!("begin from a checkpoint of job {job}");
    let next = "name a job of your own";
    Error::refused(tried, "it is another user's", next)
}

/// What bounds the interval that is chosen for a job.
fn limits(config: &CheckpointConfig) -> Limits {
    Limits {
        budget: f64::from(config.overhead_percent) / 100.0,
        least_s: f64::from(config.least_s),
        ..Limits::default()
    }
}
