//! What is written down of what happens, and who hears it: the log, the audit log and those who watch.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;

use gpuos_config::access::Access;
use gpuos_core::health::Audit;
use gpuos_core::isolation::Finding;
use gpuos_core::job::JobId;
use gpuos_core::wire::{Happening, Peer};
use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Now, Quota};
use super::quiet::Quiet;
use super::watchers::{Viewers, Watchers};
use crate::audit;

/// Who hears what.
pub struct Journal {
    node: String,
    watchers: Watchers,
    viewers: Viewers,
    quiet: Quiet,
}

/// Users of the jobs of this node.
pub type Users = BTreeMap<JobId, u32>;

impl Journal {
    /// Nobody watches yet.
    pub fn new(node: &str) -> Journal {
        Journal {
            node: node.into(),
            watchers: Watchers::default(),
            viewers: Viewers::default(),
            quiet: Quiet::default(),
        }
    }

    /// Who is told everything.
    pub fn privileged_viewers(&self) -> &Viewers {
        &self.viewers
    }

    /// Takes `[access]` of gpuos.toml.
    pub fn set(&mut self, access: Access) {
        self.viewers.access = access;
    }

    /// The controller of the workload manager has told which user it runs as.
    pub fn workload_user(&mut self, uid: u32) {
        self.viewers.workload_user = Some(uid);
    }

    /// Somebody watches.
    pub fn watch(&mut self, peer: Peer, watcher: SyncSender<Happening>) {
        self.watchers.add(peer, watcher);
    }

    /// Whose a job is.
    pub fn knows(&mut self, job: &JobId, uid: u32) {
        self.quiet.knows(job, uid);
    }

    /// Whether a line about something is written: one user does not fill the log.
    pub fn is_logged(
        &mut self,
        (quota, job): (Quota, Option<&JobId>),
        users: &Users,
        now: Now,
    ) -> bool {
        let uid = match quota {
            Quota::None => None,
            Quota::User(uid) => uid,
            Quota::Job => job.and_then(|job| self.user_of(job, users)),
        };
        uid.is_none_or(|uid| uid == 0 || self.quiet.lets(uid, now.at))
    }

    /// Whose a job is, or was.
    fn user_of(&self, job: &JobId, users: &Users) -> Option<u32> {
        let here = users.get(job).copied();
        here.or_else(|| self.quiet.user_of(job))
    }

    /// A line of the audit log, as it is written there.
    pub fn log(&mut self, audit: &Audit, users: &Users) -> String {
        let what = audit.rule.as_deref().unwrap_or("audit");
        let on = audit
            .gpu
            .map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
        tracing::info!(
            gpu = audit.gpu.map(display),
            rule = audit.rule.as_deref(),
            job = audit.job.as_ref().map(display),
            uid = audit.uid,
            "{on}{}",
            audit.text
        );
        self.happen(
            Happening {
                at_ms: audit.at_ms,
                what: what.into(),
                gpu: audit.gpu,
                job: audit.job.clone(),
                message: audit.text.clone(),
            },
            users,
        );
        let user = audit.job.as_ref().and_then(|job| self.user_of(job, users));
        audit::line(&self.node, audit, user)
    }

    /// A warning of the rules.
    pub fn warn(&mut self, gpu: Option<NodeGpu>, text: String, users: &Users, now: Now) {
        tracing::warn!(gpu = gpu.map(display), "{text}");
        self.happen(
            Happening {
                at_ms: now.wall_ms,
                what: "warn".into(),
                gpu,
                job: None,
                message: text,
            },
            users,
        );
    }

    /// What was left out of late.
    pub fn suppressed(&mut self, now: Now) -> Vec<(u32, String)> {
        let mut told = Vec::new();
        for (uid, count) in self.quiet.due(now.at) {
            let text = format!(
                "{count} lines about jobs and processes of uid {uid} were left out: too many in a short time"
            );
            tracing::warn!(uid, "{text}");
            told.push((uid, text));
        }
        told
    }

    fn happen(&mut self, event: Happening, users: &Users) {
        if !self.watchers.is_empty() {
            self.watchers.publish(&event, &self.viewers, users);
        }
    }
}

/// Somebody is on a GPU who should not be.
pub fn warn_of(finding: &Finding) {
    tracing::warn!(
        gpu = display(finding.gpu),
        job = finding.job.as_ref().map(display),
        "{}",
        finding.message
    );
}
