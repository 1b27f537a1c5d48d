//! PBS's reservations by which it keeps vnodes for the job that is next: asked for, made, moved and deleted.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
use gpuos_host::Machine;
use gpuos_pbs::hook::install::programs;
use gpuos_pbs::pass::Keeps;
use gpuos_pbs::pass::reserve::{Act, Reservation, own, step, written};
use gpuos_pbs::state::Site;

use crate::table::utc;

/// Where PBS says what it runs with, as its own commands have it.
const CONF: &str = "/etc/pbs.conf";

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long nothing is tried again for which PBS had no room, or which it refused.
const AGAIN: Duration = Duration::from_secs(60);

/// PBS's commands for reservations.
pub struct Keeper {
    /// The folder of its programs.
    programs: String,
    /// What was asked for lately, and when.
    asked: HashMap<String, Instant>,
}

impl Keeper {
    /// Those of the installation that pbs.conf names.
    ///
    /// # Errors
    /// There is none: a sentence.
    pub fn find(machine: &dyn Machine) -> Result<Keeper> {
        let path = machine.env("PBS_CONF_FILE").unwrap_or_else(|| CONF.into());
        let bytes = machine.read(Path::new(&path));
        let bytes = bytes.with_context(|| format!("cannot read {path}"))?;
        let text = String::from_utf8_lossy(&bytes);
        let programs = programs(&text).map_err(|why| anyhow!("{path}: {why}"))?;
        Ok(Keeper {
            programs,
            asked: HashMap::new(),
        })
    }

    /// The planner's reservations; their vnodes are free for it. None where PBS does not say: their vnodes then count as somebody else's.
    pub fn own(&self, machine: &dyn Machine, site: &mut Site) -> Vec<Reservation> {
        let said = self.command(machine, "pbs_rstat", &["-f"]);
        let known = said.map(|text| own(&text)).unwrap_or_default();
        let ids: Vec<&str> = known.iter().map(|one| &one.id[..]).collect();
        site.nodes.forgive(&ids);
        known
    }

    /// Has PBS keep what a plan keeps, and nothing else. `busy` are jobs of the plan that were to start and do not run.
    ///
    /// # Errors
    /// What PBS refused, in its words. The plan holds all the same, for the planner alone.
    pub fn follow(
        &mut self,
        machine: &dyn Machine,
        (known, keeps): (&[Reservation], &[Keeps]),
        busy: &BTreeSet<String>,
        site: &Site,
    ) -> Vec<anyhow::Error> {
        self.asked.retain(|_, when| when.elapsed() < AGAIN);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        let acts = step(known, keeps, busy, site, now);
        let done = acts.iter().map(|act| self.act(machine, act));
        done.filter_map(Result::err).collect()
    }

    fn act(&mut self, machine: &dyn Machine, act: &Act) -> Result<()> {
        let time = |seconds: i64| written(&utc(u64::try_from(seconds).unwrap_or(0)));
        match act {
            // What PBS had no room for goes by itself.
            Act::Delete { id } => match self.command(machine, "pbs_rdel", &[id]) {
                Err(e) if e.to_string().contains("Unknown Reservation Id") => return Ok(()),
                deleted => deleted,
            },
            Act::Move { id, begins, ends } => {
                if !self.is_new(format!("{id} moved")) {
                    return Ok(());
                }
                let args = ["-R", &time(*begins), "-E", &time(*ends), id];
                self.command(machine, "pbs_ralter", &args)
            }
            Act::Make {
                name,
                select,
                begins,
                ends,
            } => {
                if !self.is_new(format!("{name} {select}")) {
                    return Ok(());
                }
                let select = format!("select={select}");
                let (begins, ends) = (time(*begins), time(*ends));
                let when = ["-R", &begins, "-E", &ends];
                let what = ["-l", &select, "-l", "place=free"];
                let args = [&["-N", name], &when[..], &what].concat();
                self.command(machine, "pbs_rsub", &args)
            }
        }
        .map(drop)
    }

    /// Whether this was not asked for lately; from here it was.
    fn is_new(&mut self, what: String) -> bool {
        self.asked.insert(what, Instant::now()).is_none()
    }

    /// Times are written and read in UTC, whatever the site's zone does twice a year.
    fn command(&self, machine: &dyn Machine, program: &str, args: &[&str]) -> Result<String> {
        let path = format!("{}/{program}", self.programs);
        let done = machine.run_with_env(LIMIT, ("TZ", "UTC0"), &path, args)?;
        if done.ok {
            return Ok(done.stdout);
        }
        let said = done.stderr.trim().lines().next_back().unwrap_or_default();
        Err(anyhow!(
            "`{program} {}` failed: {said}; pbs_sched may start others on what is kept",
            args.join(" ")
        ))
    }
}

/// Whether this process is root's, whose reservations alone count as the planner's.
pub fn is_root(machine: &dyn Machine) -> bool {
    let own = machine.stat(Path::new("/proc/self/stat"));
    own.is_ok_and(|stat| stat.uid == 0)
}
