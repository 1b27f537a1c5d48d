//! One side of a comparison: a lab in which states are made and requests tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use gpuos_lab::pbs::PbsLab;

use super::ask::{Request, State, Step};
use super::look::{Look, Shapes, text};
use super::own::{NO_JOB, Own};
use super::server::{LIMIT, Server};
use super::site::Site;

/// How long a state is waited for that one of the two may never reach.
const WHILE: Duration = Duration::from_secs(10);

/// What came of a step.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The server accepted it.
    Accepted,
    /// It did not, with these words.
    Refused(String),
    /// What was there after a cycle and, where a job waited, after another one.
    Looked {
        /// After the first cycle.
        first: Box<Look>,
        /// After the second.
        second: Box<Look>,
    },
    /// It has no answer.
    None,
}

/// What came of a state.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// What came of the steps that make it.
    pub made: Vec<Answer>,
    /// What is assigned on each host then.
    pub used: BTreeMap<String, String>,
    /// What came of the requests.
    pub requests: Vec<Vec<Answer>>,
    /// What is assigned on each host when all has been deleted.
    pub left: BTreeMap<String, String>,
}

/// A lab with what was submitted in it.
pub struct Side {
    server: Server,
    /// Names of jobs and reservations by those of PBS.
    names: BTreeMap<String, String>,
    /// What was made of a state before it is run.
    made: Option<(Own, Vec<Answer>)>,
    /// Whether gpuos is yet to be installed.
    is_before_install: bool,
    /// Jobs that ran before it was: nobody told their programs of GPUs.
    untold: BTreeSet<String>,
}

/// Whether nothing is assigned on any host.
pub fn is_idle(used: &BTreeMap<String, String>) -> bool {
    used.values().all(|used| used == "0 CPUs, 0 GPUs")
}

impl Side {
    /// A lab that is ready.
    pub fn new(lab: PbsLab, site: &Site) -> Side {
        let server = Server::new(lab, site);
        let work = &server.work;
        let began = format!(
            "echo \"${{CUDA_VISIBLE_DEVICES-unset}}\" >{}/began.$PBS_JOBID\n",
            work.display()
        );
        fs::write(work.join("job"), format!("{began}exec sleep 3600\n")).expect("written");
        for status in 0..2 {
            let script = format!("{began}exit {status}\n");
            fs::write(work.join(format!("job{status}")), script).expect("written");
        }
        Side {
            server,
            names: BTreeMap::new(),
            made: None,
            is_before_install: false,
            untold: BTreeSet::new(),
        }
    }

    /// Its lab.
    pub fn lab(&self) -> &PbsLab {
        &self.server.lab
    }

    fn look(&mut self) -> Look {
        let mut look = self.server.look(&self.names);
        match self.is_before_install {
            true => self
                .untold
                .extend(std::mem::take(&mut look.told).into_keys()),
            false => look.told.retain(|job, _| !self.untold.contains(job)),
        }
        look
    }

    fn looked(&mut self) -> Answer {
        self.server.cycle();
        let first = Box::new(self.look());
        let waits = |shapes: &Shapes| shapes.values().any(|shape| shape.states.contains_key("Q"));
        let second = match waits(&first.shapes) {
            true => {
                self.server.cycle();
                Box::new(self.look())
            }
            false => first.clone(),
        };
        Answer::Looked { first, second }
    }

    fn submit(&mut self, own: &mut Own, name: &str, user: &str, line: &str) -> Answer {
        let said = self.server.sh(user, line);
        // qsub ends well at some of its own refusals.
        let is_job = |said: &&str| said.ends_with(".head") && !said.contains(' ');
        match said.as_ref().map(|said| said.trim()).ok().filter(is_job) {
            Some(id) => {
                let name = format!("{name}{}", own.jobs.len());
                self.names.insert(id.to_owned(), name);
                own.jobs.push(id.to_owned());
                Answer::Accepted
            }
            None => {
                own.jobs.push(NO_JOB.into());
                Answer::Refused(said.unwrap_or_else(|why| why))
            }
        }
    }

    fn reserve(&mut self, own: &mut Own, name: &str, user: &str, line: &str) -> Answer {
        match self.server.sh(user, line) {
            Ok(said) => {
                let id = said.split_whitespace().next().unwrap_or_default();
                self.names.insert(id.to_owned(), format!("{name}R"));
                own.reservations.push(id.to_owned());
                Answer::Accepted
            }
            Err(why) => Answer::Refused(why),
        }
    }

    /// Does a step. `name` begins the names of its jobs.
    fn step(&mut self, own: &mut Own, name: &str, step: &Step) -> Answer {
        match step {
            Step::Submit {
                user,
                options,
                exits,
            } => {
                let script = match exits {
                    Some(status) => format!("job{status}"),
                    None => "job".into(),
                };
                let line = format!(
                    "cd / && qsub -m n -j oe -o /dev/null {} {}/{script}",
                    own.fill(options),
                    self.server.work.display()
                );
                self.submit(own, name, user, &line)
            }
            Step::Reserve {
                user,
                starts,
                options,
            } => {
                let line = format!(
                    "pbs_rsub -m n -R $(date -d '+{starts} seconds' +%Y%m%d%H%M.%S) {options}"
                );
                self.reserve(own, name, user, &line)
            }
            Step::Tell { user, line } => match self.server.sh(user, &own.fill(line)) {
                Ok(_) => Answer::Accepted,
                Err(why) => Answer::Refused(why),
            },
            Step::Cycle => {
                self.server.cycle();
                Answer::None
            }
            Step::Look if name == "j" && !own.is_there() => Answer::None,
            Step::Look => self.looked(),
            Step::Ended(job) => {
                let job = own.jobs[*job].clone();
                self.server.until(LIMIT, |server| {
                    let found = server.jobs().get(&job).map(|job| text(&job["job_state"]));
                    found.is_none_or(|state| !["R", "E"].contains(&&state[..]))
                });
                Answer::None
            }
            Step::Until(line) => {
                let line = own.fill(line);
                self.server
                    .until(WHILE, |server| server.sh("root", &line).is_ok());
                Answer::None
            }
        }
    }

    fn steps(&mut self, own: &mut Own, name: &str, request: &Request) -> Vec<Answer> {
        let mut answers = Vec::new();
        for step in &request.steps {
            // A job that runs can be changed, suspended or preempted once its mom has said that it does, a second or two later.
            let has_looked = matches!(answers.last(), Some(Answer::Looked { .. }));
            if has_looked || matches!(step, Step::Tell { .. }) {
                self.server.until(WHILE, Server::all_have_begun);
            }
            // What was refused does nothing that could be waited for.
            let is_idle = matches!(step, Step::Until(_))
                && matches!(answers.last(), Some(Answer::Refused(_)));
            answers.push(match is_idle {
                true => Answer::None,
                false => self.step(own, name, step),
            });
        }
        answers
    }

    /// Deletes jobs and reservations, and undoes what else was done.
    fn clear(&mut self, own: Own, request: &Request) {
        let jobs: Vec<String> = own.jobs.into_iter().filter(|job| job != NO_JOB).collect();
        let list = jobs.join(" ");
        let reservations = own.reservations.join(" ");
        let mut lines = request.undo.clone();
        if !reservations.is_empty() {
            lines.push(format!("pbs_rdel {reservations}"));
        }
        if !jobs.is_empty() {
            lines.push(format!("qdel -x {list}"));
        }
        if !lines.is_empty() {
            // Some may have gone, or be as they were.
            let _ = self.server.sh("root", &lines.join("; "));
        }
        let gone = |server: &mut Server| {
            let left = server.jobs();
            !jobs.iter().any(|job| left.contains_key(job))
        };
        if !jobs.is_empty() && !self.server.until(LIMIT / 3, gone) {
            eprintln!(
                "{}: {list} had to be deleted by force",
                self.server.lab.name()
            );
            let _ = self.server.sh("root", &format!("qdel -x -W force {list}"));
        }
        let is_gone = |id: &String| jobs.contains(id) || own.reservations.contains(id);
        self.names.retain(|id, _| !is_gone(id));
    }

    /// Makes a state, whose jobs are then known by the names given.
    fn make(&mut self, state: &State) -> (Own, Vec<Answer>) {
        let mut own = Own::default();
        let made = self.steps(&mut own, "h", &state.made_by);
        self.server.until(WHILE, Server::all_have_begun);
        (own, made)
    }

    /// Makes a state ahead of [`Side::run`], before gpuos is installed.
    pub fn prepare(&mut self, state: &State) {
        self.is_before_install = true;
        self.made = Some(self.make(state));
        self.look();
        self.is_before_install = false;
    }

    /// Whether a state was made ahead.
    pub fn is_prepared(&self) -> bool {
        self.made.is_some()
    }

    /// Makes a state, where it is not made already, and tries its requests.
    pub fn run(&mut self, state: &State) -> Seen {
        let made = self.made.take();
        let (mut own, made) = made.unwrap_or_else(|| self.make(state));
        let mut seen = Seen {
            made,
            used: self.server.assigned(),
            ..Seen::default()
        };
        let before = self.look().shapes;
        for request in &state.requests {
            let mut of_request = Own::default();
            let answers = self.steps(&mut of_request, "j", request);
            seen.requests.push(answers);
            self.clear(of_request, request);
            if self.look().shapes != before {
                self.server.cycle();
            }
            if self.look().shapes != before {
                self.clear(own, &state.made_by);
                own = self.make(state).0;
            }
        }
        self.clear(own, &state.made_by);
        self.server
            .until(WHILE, |server| is_idle(&server.assigned()));
        seen.left = self.server.assigned();
        seen
    }
}
