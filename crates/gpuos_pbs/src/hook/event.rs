//! The two forms of JSON, `gpuos.pbs/1`: what happened, and what is to be done about it.

use std::collections::BTreeMap;

use gpuos_model::mig::Geometry;
use gpuos_model::screen;
use serde::{Deserialize, Serialize};

use super::MOST_BYTES;
use super::beyond::Beyond;
use super::vnodes::short;

/// Name and version of both forms.
pub const SCHEMA: &str = "gpuos.pbs/1";

/// The longest sentence for PBS, in bytes: it keeps 3,172 of a hook's, and shows them on one line.
const MOST_SENTENCE: usize = 1024;

/// Resources of a job or a vnode, by name.
pub type Resources = BTreeMap<String, String>;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A job is submitted.
    Queuejob,
    /// A job is changed.
    Modifyjob,
    /// A reservation is submitted.
    Resvsub,
    /// A reservation is changed.
    Modifyresv,
    /// A job is about to be started on the vnodes that it was given.
    Runjob,
    /// A program of a job is about to be started on a host.
    #[serde(rename = "execjob_launch")]
    ExecjobLaunch,
    /// A run of a job has left a host.
    #[serde(rename = "execjob_end")]
    ExecjobEnd,
    /// A mom tells all that it has, every few seconds.
    #[serde(rename = "exechost_periodic")]
    ExechostPeriodic,
}

/// An event of a hook. What PBS did not set is absent, or an empty text.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Event {
    schema: String,
    /// What happened.
    #[serde(rename = "event")]
    pub kind: Kind,
    /// Name of the host of the mom, as PBS has it.
    #[serde(default)]
    pub host: String,
    /// Seconds since 1970.
    #[serde(default)]
    pub now: u64,
    /// Whether `gpuos pbs-planner` places jobs beside pbs_sched.
    #[serde(default)]
    pub planner: bool,
    /// How many GPUs the largest domain of a level has, where hosts are described.
    #[serde(default)]
    pub largest: BTreeMap<String, u64>,
    /// Whether some hosts have several sets of GPUs with NVLink: then no vnode says in which one a job is.
    #[serde(default)]
    pub several_sets: bool,
    /// How GPUs that are divided can be, by the names of their kinds.
    #[serde(default)]
    pub boards: BTreeMap<String, Geometry>,
    /// How GPUs are shared; `None`: none is.
    #[serde(default)]
    pub shares: Option<Shares>,
    /// What there is of memory beyond that of whole GPUs; `None`: jobs have none.
    #[serde(default)]
    pub memory: Option<Beyond>,
    /// The job, or the reservation; of one that is changed, only what is changed.
    #[serde(default)]
    pub job: Job,
    /// What is changed, as it was.
    #[serde(default)]
    pub old: Job,
    /// Vnodes that the event is about, with their resources.
    #[serde(default)]
    pub vnodes: BTreeMap<String, Resources>,
    /// GPUs that vnodes have left, where others than pbs_sched may start jobs, too.
    #[serde(default)]
    pub left: BTreeMap<String, Left>,
    /// What the administrator says of hosts.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// The socket of gpuosd on the host of the mom; empty where it is not asked.
    #[serde(default)]
    pub gpuosd: String,
    /// The socket of gpuos_mover there; empty where it is not asked.
    #[serde(default)]
    pub mover: String,
    /// The library that programs load which have memory of a GPU in turns, or more than their GPUs have; empty: this host has none.
    #[serde(default)]
    pub preload: String,
    /// What the program that is about to be started loads already, by its `LD_PRELOAD`: a text of its user.
    #[serde(default)]
    pub loaded: String,
    /// Whether a program that is about to be started is the first of its job: mom waits for no other than such a one beside its work.
    #[serde(default = "yes")]
    pub first: bool,
    /// Whether the site keeps checkpoints of jobs.
    #[serde(default)]
    pub checkpoints: bool,
    /// Whether programs are kept to the GPUs of their jobs.
    #[serde(default)]
    pub confine: Confine,
    /// The process that becomes the program which is launched; `None`: it was not looked up.
    #[serde(default)]
    pub parent: Option<Parent>,
    /// The jobs that a mom has, by PBS's names of them.
    #[serde(default)]
    pub jobs: BTreeMap<String, HostJob>,
    /// What pbs_server says, where it was asked.
    #[serde(default)]
    pub server: Option<Server>,
    /// How often it was asked in this event.
    #[serde(default)]
    pub turn: u32,
}

fn yes() -> bool {
    true
}

/// GPUs of a vnode, as pbs_server counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Left {
    /// All that it has.
    pub available: u64,
    /// What jobs have of them.
    pub assigned: u64,
}

/// A job of a mom.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostJob {
    /// The vnodes that it was given, here and elsewhere.
    pub exec_vnode: String,
    /// Session of its script, on the host where that runs; 0: it runs elsewhere, or not yet.
    pub session: u32,
    /// Of its `Resource_List` what concerns gpuos.
    pub resources: Resources,
    /// The GPUs that pbs_cgroups has noted for it, by its own file; empty: none, or this host is none on which gpuos only advises.
    pub visible: String,
    /// Whose it is.
    #[serde(flatten)]
    pub held: Held,
}

/// What pbs_server says of what it was asked about. What is missing it did not say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Vnodes by their names.
    pub vnodes: BTreeMap<String, ServerVnode>,
    /// Jobs by their names.
    pub jobs: BTreeMap<String, ServerJob>,
}

/// A job, as pbs_server has it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServerJob {
    /// Its `Exit_status`; of one that runs it says how it will end.
    pub exit: Option<i64>,
    /// Whether its user lets it run again (`qsub -r`).
    pub rerun: bool,
    /// Whether somebody holds it (`qhold`): pbs_server notes it of one that runs, and nothing else happens to it.
    pub held: bool,
}

/// A vnode, as pbs_server has it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServerVnode {
    /// Whether it is offline.
    pub offline: bool,
    /// Its comment; empty: it has none.
    pub comment: String,
    /// What it has of resources, as far as they concern gpuos.
    pub resources: Resources,
}

/// What of a job events are decided by.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    /// PBS's name of it, such as `12.head`, or `12[3].head` of a subjob; empty where the event does not need it.
    pub id: String,
    /// `Resource_List`.
    pub resources: Resources,
    /// The vnodes that it was given.
    pub exec_vnode: String,
    /// Its `Exit_status`: how its last run ended.
    pub exit: Option<i64>,
    /// What else a mom says of it, where gpuosd is told.
    #[serde(flatten)]
    pub held: Held,
}

/// Whether programs are kept to the GPUs of their jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confine {
    /// They are not.
    #[default]
    Off,
    /// They are where it can be done; else they start all the same.
    Try,
    /// They start only when it is done.
    Require,
}

/// A process, by its number and when it was started, in the kernel's ticks since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Parent {
    /// Its number.
    pub pid: u32,
    /// When it was started.
    pub started: u64,
}

/// Whose a job is, and which run of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Held {
    /// Its user.
    pub user: String,
    /// Number of the user on the host; `None`: the host does not know the user.
    pub uid: Option<u32>,
    /// Number of its group there, likewise.
    pub gid: Option<u32>,
    /// In how many seconds it has had its time; `None`: it has no limit, or mom does not say.
    pub ends_in: Option<u64>,
    /// Which of its runs this is.
    pub run: u64,
    /// Whether PBS has suspended it, as its mom has it.
    pub suspended: bool,
}

/// A host and its GPUs, as an administrator describes them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// CPUs that stayed with the host's own vnode while each GPU had one. It is read and means nothing any more.
    #[serde(skip_serializing)]
    pub keep_cpus: u64,
    /// Memory in MiB, likewise.
    #[serde(skip_serializing)]
    pub keep_mib: u64,
    /// GPUs whose vnodes of a release before this one jobs still have: `gpuos pbs install` writes it here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<usize>,
    /// The leaf switch at which the host is.
    pub leaf: String,
    /// Another one gives the GPUs to jobs, such as pbs_cgroups, and gpuos only advises.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub advise: bool,
    /// The GPUs, by their index in NVIDIA's order.
    pub gpus: Vec<Gpu>,
}

/// A GPU of a [`Host`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// Its UUID; empty: programs are told its index.
    pub uuid: String,
    /// Name of the set of GPUs that it has NVLink to, the same for all of the set and for no other of the cluster.
    pub nvlink: String,
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// Into how many parts it is, each for one job; 0: it is one job's as a whole.
    #[serde(skip_serializing_if = "is_zero")]
    pub shares: u16,
    /// How it is divided, where gpuos.toml has it in a pool: `gpuos pbs install` writes it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Divided>,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// How the GPUs that jobs share are shared, which is the same on the whole site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Parts of each of them.
    pub parts: u16,
    /// Jobs that have one in turns with its memory at most; 0: jobs cannot.
    pub turns: u32,
    /// Memory of the smallest of them, in MiB; 0: nobody says, and no job has it in turns.
    pub gpu_mib: u64,
    /// The most of it that a job in turns can have, in MiB.
    pub most_mib: u64,
}

/// A GPU of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Divided {
    /// Its kind in gpuos.toml.
    pub board: String,
    /// Its compute slices.
    pub compute: u8,
    /// Its memory slices.
    pub memory: u8,
}

impl Host {
    /// How many of its GPUs are given to one job at a time, as a whole.
    pub(super) fn whole(&self) -> u64 {
        self.gpus.iter().filter(|gpu| gpu.is_whole()).count() as u64
    }
}

impl Gpu {
    /// Whether it is given to one job at a time, as a whole.
    pub(super) fn is_whole(&self) -> bool {
        self.mig.is_none() && self.shares == 0
    }
}

impl Event {
    /// What the administrator says of the host of the event, whichever of its names he uses.
    pub(super) fn described(&self) -> impl Iterator<Item = &Host> {
        let this = short(&self.host);
        let own = self
            .hosts
            .iter()
            .filter(move |(name, _)| short(name) == this);
        own.map(|(_, host)| host)
    }

    /// Reads an event.
    ///
    /// # Errors
    /// Why the text is none.
    pub fn read(text: &str) -> Result<Event, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("the event is longer than {MOST_BYTES} bytes"));
        }
        let event: Event =
            serde_json::from_str(text).map_err(|why| format!("the event cannot be read: {why}"))?;
        match event.schema == SCHEMA {
            true => Ok(event),
            false => Err(format!(
                "the event is of the form '{}', and this gpuos knows {SCHEMA}: install hook, command and library of one release",
                gpuos_model::hostlist::shorten(&event.schema)
            )),
        }
    }
}

/// One thing that PBS is to change. `set` names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "set", rename_all = "kebab-case")]
pub enum Edit {
    /// A resource of the job, `select` and `place` among them.
    Resource {
        /// Its name.
        name: String,
        /// Its new value: a number where the resource is counted.
        value: Value,
    },
    /// The moment before which the job is not tried again.
    StartAfter {
        /// Seconds since 1970.
        value: u64,
    },
    /// A variable of the program that is started, with backslashes where PBS wants them.
    Env {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A resource of a vnode.
    Vnode {
        /// The vnode.
        vnode: String,
        /// The resource.
        name: &'static str,
        /// Its value: a number where the resource is counted; an empty text takes it away.
        value: Value,
    },
    /// A vnode that gets no more jobs; those that are there go on.
    Offline {
        /// The vnode.
        vnode: String,
        /// Its comment.
        value: String,
    },
    /// A vnode that gets jobs again, and has no comment.
    Online {
        /// The vnode.
        vnode: String,
    },
    /// The comment of a vnode, whose state stays; empty: it has none.
    Comment {
        /// The vnode.
        vnode: String,
        /// Its comment.
        value: String,
    },
    /// The job of the event, whose start is refused, is queued again; PBS would delete it.
    Requeue,
    /// A job that PBS has to queue again when it has ended.
    Rerun {
        /// Its name.
        value: String,
    },
    /// A job that PBS has to delete when it has ended.
    Delete {
        /// Its name.
        value: String,
    },
    /// A session of a job whose first process has to end now, if it is still this user's.
    Kill {
        /// Number of the session and of that process.
        value: u32,
        /// Number of the user.
        uid: u32,
    },
}

/// A value of a resource, in the type that PBS has for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Number(u64),
    /// A size with its unit, or a text.
    Text(String),
}

/// What PBS is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The sentence for who asked, if the event is refused.
    pub refused: Option<String>,
    /// What is changed.
    pub edits: Vec<Edit>,
    /// Sentences for the standard error of the program that is started.
    pub notes: Vec<String>,
    /// A sentence for the log of PBS, where the event goes on.
    pub log: Option<String>,
    /// A refusal holds for jobs too that say nothing to gpuos.
    pub must: bool,
}

/// A variable. PBS cuts lists of them at commas that have no backslash.
pub(super) fn env(name: &'static str, value: &str) -> Edit {
    Edit::Env {
        name,
        value: value.replace(',', "\\,"),
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    schema: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    edits: &'a [Edit],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    must: bool,
}

impl Verdict {
    /// The event goes on, with what is changed.
    pub fn accept(edits: Vec<Edit>) -> Verdict {
        Verdict {
            refused: None,
            edits,
            notes: Vec::new(),
            log: None,
            must: false,
        }
    }

    /// The event is refused.
    pub fn reject(sentence: String) -> Verdict {
        Verdict {
            refused: Some(sentence),
            edits: Vec::new(),
            notes: Vec::new(),
            log: None,
            must: false,
        }
    }

    /// The JSON, on one line. The sentence is one line of print.
    pub fn json(&self) -> String {
        let verdict = if self.refused.is_some() {
            "reject"
        } else {
            "accept"
        };
        let notes = self.notes.iter().map(|note| one_line(note)).collect();
        let message = self.refused.as_ref().or(self.log.as_ref());
        let answer = Answer {
            schema: SCHEMA,
            verdict,
            message: message.map(|sentence| one_line(sentence)),
            edits: &self.edits,
            notes,
            must: self.must,
        };
        // Texts and numbers only: nothing of it can fail to be written.
        serde_json::to_string(&answer).unwrap_or_default()
    }

    /// The JSON for a text that is no event.
    pub fn error_json(why: &str) -> String {
        print("error", Some(why), &[])
    }
}

/// What the hook has to ask pbs_server, and to tell with the same event once more.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ask {
    /// Vnodes: whether they are offline, and their comments.
    pub vnodes: Vec<String>,
    /// Jobs: their `Exit_status`.
    pub jobs: Vec<String>,
}

#[derive(Serialize)]
struct AskAnswer<'a> {
    schema: &'static str,
    verdict: &'static str,
    edits: [Edit; 0],
    ask: &'a Ask,
}

impl Ask {
    /// The JSON: the event goes on, once this is known.
    pub fn json(&self) -> String {
        let answer = AskAnswer {
            schema: SCHEMA,
            verdict: "accept",
            edits: [],
            ask: self,
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }
}

/// The JSON of an event that goes on, with a sentence for the log.
pub(super) fn accepted_json(edits: Vec<Edit>, note: Option<&str>) -> String {
    print("accept", note, &edits)
}

fn print(verdict: &'static str, message: Option<&str>, edits: &[Edit]) -> String {
    let answer = Answer {
        schema: SCHEMA,
        verdict,
        message: message.map(one_line),
        edits,
        notes: Vec::new(),
        must: false,
    };
    serde_json::to_string(&answer).unwrap_or_default()
}

fn one_line(sentence: &str) -> String {
    let mut line = screen::line(sentence).into_owned();
    if line.len() > MOST_SENTENCE {
        let mut end = MOST_SENTENCE;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('…');
    }
    line
}
