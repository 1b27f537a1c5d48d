//! What PBS refuses, in which words and with which status, in what form its commands answer, and what its module for hooks lets a hook do. On an
//! installed PBS this holds the tests' picture of PBS against it, elsewhere the stand-in against that picture.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::PbsLab;
use gpuos_tests::{costs, pbs};
use serde_json::Value;

use crate::pbs_site::{LIMIT, ran, until};

/// Options of qsub, the status that it ends with, and what it says.
const SUBMITTED: [(&[&str], i32, &str); 20] = [
    (
        &["-l", "select=1:nosuch=1"],
        187,
        "qsub: Unknown resource: nosuch",
    ),
    (
        &["-l", "nosuch=1"],
        187,
        "qsub: Unknown resource Resource_List.nosuch",
    ),
    (
        &["-l", "select=1:ncpus=1x"],
        166,
        "qsub: Illegal attribute or resource value select.ncpus",
    ),
    (
        &["-l", "select=1:ncpus=-1"],
        166,
        "qsub: Illegal attribute or resource value select.ncpus",
    ),
    (
        &["-l", "select=1:mem=1zb"],
        166,
        "qsub: Illegal attribute or resource value select.mem",
    ),
    (
        &["-l", "select=0:ncpus=1"],
        166,
        "qsub: Illegal attribute or resource value",
    ),
    (
        &["-l", "select=x"],
        166,
        "qsub: Illegal attribute or resource value Resource_List.select",
    ),
    (
        &["-l", "select="],
        166,
        "qsub: Illegal attribute or resource value Resource_List.select",
    ),
    (
        &["-l", "place=moon"],
        166,
        "qsub: Illegal attribute or resource value Resource_List.place",
    ),
    (
        &["-l", "place=free:group="],
        166,
        "qsub: Illegal attribute or resource value Resource_List.place",
    ),
    (
        &["-l", "walltime=abc"],
        166,
        "qsub: Illegal attribute or resource value Resource_List.walltime",
    ),
    (
        &["-l", "select=1:ngpus=1", "-l", "ngpus=1"],
        5,
        "cannot be used with \"select\" or \"place\", resource is: ngpus",
    ),
    (
        &["-l", "select=1:ncpus=1:ncpus=2"],
        12,
        "duplicated resource within a section of a select specification, resource is: ncpus",
    ),
    (
        &["-l", "kept=1"],
        155,
        "Cannot set attribute, read only or insufficient permission  Resource_List.kept",
    ),
    (&["-q", "moon"], 170, "qsub: Unknown queue"),
    (&["-N", "a b"], 2, "qsub: illegal -N value"),
    (&["-h", "-l", "wish=\"a\nb\""], 0, ""),
    (&["-h", "-l", "select=99999999999:ngpus=1"], 0, ""),
    (&["-h", "-l", "select=1:ngpus=99999999999999999999"], 0, ""),
    (&["-h", "-J", "1-3"], 0, ""),
];

/// Who does what with a job that waits (`JOB`), the status, and what is said.
const OF_JOBS: [(Option<&str>, &[&str], i32, &str); 15] = [
    (
        Some("user2"),
        &["qalter", "-l", "walltime=3", "JOB"],
        159,
        "qalter: Unauthorized Request  JOB",
    ),
    (
        Some("user2"),
        &["qdel", "JOB"],
        159,
        "qdel: Unauthorized Request  JOB",
    ),
    (
        Some("user2"),
        &["qrls", "JOB"],
        159,
        "qrls: Unauthorized Request  JOB",
    ),
    (
        Some("user1"),
        &["qrun", "JOB"],
        2,
        "qrun: Unauthorized Request  JOB",
    ),
    (
        Some("user1"),
        &["qalter", "-l", "nosuch=2", "JOB"],
        187,
        "qalter: Unknown resource Resource_List.nosuch JOB",
    ),
    (
        None,
        &["qrun", "-H", "(nosuch:ngpus=1)", "JOB"],
        2,
        "qrun: Unknown node  (nosuch:ngpus=1)",
    ),
    (
        None,
        &["qrun", "-H", "(n1:ncpus=1)", "99.head"],
        2,
        "qrun: Unknown Job Id 99.head",
    ),
    (None, &["qdel", "99"], 153, "qdel: Unknown Job Id 99.head"),
    (
        None,
        &["qrerun", "JOB"],
        168,
        "qrerun: Request invalid for state of job JOB",
    ),
    (None, &["qstat", "99"], 153, "qstat: Unknown Job Id 99.head"),
    (None, &["qrun", "-H", "(n1:ncpus=1)", "JOB"], 0, ""),
    (
        None,
        &["qrun", "-H", "(n1:ncpus=1)", "JOB"],
        2,
        "qrun: Request invalid for state of job JOB",
    ),
    (
        None,
        &["qalter", "-l", "ncpus=2", "JOB"],
        167,
        "Cannot modify attribute while job running  Resource_List.ncpus JOB",
    ),
    (
        Some("user2"),
        &["qdel", "-W", "force", "JOB"],
        159,
        "qdel: Unauthorized Request  JOB",
    ),
    (Some("user1"), &["qdel", "JOB"], 0, ""),
];

/// Lines for qmgr by root, the status, and what is said.
const MANAGED: [(&str, i32, &str); 20] = [
    (
        "set node nosuch state=offline",
        214,
        "qmgr obj=nosuch svr=default: Unknown node",
    ),
    (
        "set node n1 resources_available.nosuch=1",
        187,
        "Unknown resource resources_available.nosuch",
    ),
    (
        "set node n1 resources_available.ngpus=x",
        166,
        "Illegal attribute or resource value",
    ),
    (
        "set node n1 state=moon",
        219,
        "Illegal value for node state",
    ),
    ("create node n1", 218, "Node name already exists"),
    (
        "create resource x type=moon",
        166,
        "Illegal attribute or resource value",
    ),
    ("delete resource nosuch", 187, "Unknown resource"),
    ("delete resource wish", 70, "Resource busy on job"),
    ("set node n1 resources_available.shown=a", 0, ""),
    ("delete resource shown", 0, ""),
    ("list queue nosuch", 1, "Unknown queue"),
    ("create hook words", 0, ""),
    (
        "create hook words",
        32,
        "hook name 'words' already registered, try another name",
    ),
    ("set hook words moon=1", 32, "Undefined attribute  - moon"),
    (
        "set hook words event=moon",
        32,
        "invalid argument (moon) to event. Should be one or more of: queuejob,",
    ),
    ("list hook nosuch", 1, "hook not found"),
    (
        "import hook words application/x-python default /nosuch",
        1,
        "/nosuch - No such file or directory",
    ),
    ("delete hook nosuch", 32, "nosuch does not exist!"),
    ("delete hook words", 0, ""),
    ("moon", 1, "qmgr: Illegal operation: moon"),
];

/// Keys of a job that waits, of a vnode without jobs, and of what stands around both, in the order of PBS.
const KEYS_OF_JOB: &str = "Job_Name Job_Owner job_state queue server Checkpoint ctime Error_Path Hold_Types Join_Path Keep_Files Mail_Points mtime \
    Output_Path Priority qtime Rerunable Resource_List schedselect substate Variable_List euser egroup queue_rank queue_type \
    Submit_arguments project Submit_Host";
const KEYS_OF_VNODE: &str = "Mom Port pbs_version ntype state pcpus resources_available resources_assigned resv_enable sharing license \
    last_state_change_time";

/// A hook that tries what it may not do, notes what comes of it, and refuses the job or goes on.
const PROBE: &str = r#"
import pbs
event, said = pbs.event(), []
def tries(name, do):
    try:
        said.append("%s=%s" % (name, do()))
    except SystemExit:
        raise
    except BaseException as why:
        said.append("%s!%s" % (name, type(why).__name__))
def sets(held, name, value):
    held[name] = value
    return held[name]
server = pbs.server()
vnode = server.vnode("n1")
tries("no vnode", lambda: server.vnode("nosuch"))
tries("number of vnode", lambda: server.vnode(5))
tries("its host", lambda: vnode.resources_available["host"])
tries("state", lambda: int(vnode.state))
tries("attribute of vnode", lambda: vnode.nosuch)
tries("no job", lambda: server.job("99.head"))
tries("no such part", lambda: event.nosuch)
tries("level", lambda: pbs.logmsg("x", "y"))
tries("new vnode", lambda: pbs.vnode(5))
if event.type == pbs.QUEUEJOB:
    held = event.job.Resource_List
    tries("names", lambda: ",".join(sorted(map(str, held.keys()))))
    tries("select", lambda: held["select"])
    tries("walltime", lambda: held["walltime"])
    tries("unset", lambda: held["mem"])
    tries("unknown", lambda: held["nosuch"])
    tries("sets unknown", lambda: sets(held, "nosuch", "x"))
    tries("sets number by text", lambda: sets(held, "ncpus", "1"))
    tries("sets text by number", lambda: sets(held, "wish", 5))
    tries("takes away", lambda: sets(held, "wish", None))
    tries("sets select by text", lambda: sets(held, "select", "1:ncpus=2"))
    tries("bad select", lambda: pbs.select("x=y:"))
    tries("bad place", lambda: pbs.place("moon"))
    tries("bad size", lambda: pbs.size("x"))
    tries("sets a new attribute", lambda: setattr(event.job, "nosuch", 1))
    tries("sets time by text", lambda: setattr(event.job, "Execution_Time", "x"))
    tries("runs again", lambda: event.job.rerun())
    tries("attribute", lambda: event.job.nosuch)
    tries("vnodes", lambda: event.vnode_list)
    event.reject("; ".join(said))
if event.type == pbs.EXECHOST_PERIODIC:
    vnodes = event.vnode_list
    tries("vnodes", lambda: ",".join(vnodes.keys()))
    tries("sets number by text", lambda: sets(vnodes["n1"].resources_available, "ngpus", "7"))
    tries("sets text by number", lambda: sets(vnodes["n1"].resources_available, "shown", 5))
    tries("sets state by word", lambda: setattr(vnodes["n1"], "state", "offline"))
    tries("sets comment by number", lambda: setattr(vnodes["n1"], "comment", 5))
    tries("no host", lambda: vnodes["n1"].resources_available["host"])
    vnodes["n1"].resources_available["ngpus"] = 7
    vnodes["n1"].comment = "; ".join(said)
event.accept()
"#;

/// What comes of it in each event.
const OF_SERVER: &str = "no vnode=None; number of vnode!TypeError; its host=n1; state=0; attribute of vnode!AttributeError; no job=None; \
    no such part!EventIncompatibleError; level!TypeError; new vnode!AssertionError; names=select,walltime,wish; select=1:ncpus=1; walltime=300; \
    unset=None; unknown!AttributeError; sets unknown!UnsetResourceNameError; sets number by text!BadResourceValueTypeError; \
    sets text by number!BadResourceValueTypeError; takes away=; sets select by text!BadResourceValueTypeError; bad select!BadResourceValueError; \
    bad place!BadResourceValueError; bad size!TypeError; sets a new attribute!UnsetAttributeNameError; sets time by text!BadAttributeValueTypeError; \
    runs again!NotImplementedError; attribute!AttributeError; vnodes!EventIncompatibleError";
const OF_MOM: &str = "no vnode=None; number of vnode!TypeError; its host=n1; state=0; attribute of vnode!AttributeError; no job=None; \
    no such part!EventIncompatibleError; level!TypeError; new vnode!BadAttributeValueTypeError; vnodes=n1; \
    sets number by text!BadResourceValueTypeError; sets text by number!BadResourceValueTypeError; sets state by word!BadAttributeValueTypeError; \
    sets comment by number!BadAttributeValueTypeError; no host=None";

/// Status and standard error of a command of a user on the head.
fn said(lab: &PbsLab, user: Option<&str>, words: &[&str]) -> (i32, String) {
    let mut command = ran(lab.command_on("head", user, words[0]));
    command.args(&words[1..]).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that is refused by its options reads nothing.
    let _ = child.stdin.take().unwrap().write_all(b"sleep 1000\n");
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code().unwrap_or(-1), text)
}

fn holds(what: &str, (status, text): &(i32, String), wanted: i32, words: &str) {
    assert_eq!(*status, wanted, "{what}: {text}");
    assert!(text.contains(words), "{what}: {text}");
    assert!(wanted == 0 || !text.trim().is_empty(), "{what}");
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value}"));
    object.keys().map(String::as_str).collect()
}

fn json(lab: &PbsLab, words: &[&str]) -> Value {
    let text = ran(lab.run(words[0], &words[1..]));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// In another order keys may be where the text is read into a table.
fn same(have: &[&str], wanted: &str) {
    let mut have = have.to_vec();
    let mut wanted: Vec<&str> = wanted.split_whitespace().collect();
    have.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(have, wanted);
}

fn forms(lab: &PbsLab, job: &str) {
    let jobs = json(lab, &["qstat", "-f", "-F", "json", job]);
    same(&keys(&jobs), "timestamp pbs_version pbs_server Jobs");
    let one = &jobs["Jobs"][job];
    same(&keys(one), KEYS_OF_JOB);
    let asked = &one["Resource_List"];
    same(&keys(asked), "ncpus nodect place select walltime wish");
    let parts = [
        &asked["ncpus"],
        &asked["walltime"],
        &one["schedselect"],
        &one["job_state"],
    ];
    assert_eq!(
        parts,
        [
            &Value::from(1),
            &"00:05:00".into(),
            &"1:ncpus=1".into(),
            &"H".into()
        ]
    );
    let vnodes = json(lab, &["pbsnodes", "-av", "-F", "json"]);
    same(&keys(&vnodes), "timestamp pbs_version pbs_server nodes");
    let vnode = &vnodes["nodes"]["n1"];
    same(&keys(vnode), KEYS_OF_VNODE);
    same(
        &keys(&vnode["resources_available"]),
        "arch host mem ncpus ngpus vnode",
    );
    assert_eq!(vnode["resources_assigned"], serde_json::json!({}));
    assert_eq!(
        (&vnode["state"], &vnode["resources_available"]["ngpus"]),
        (&"free".into(), &8.into())
    );
    same(
        &keys(&json(lab, &["qstat", "-Q", "-f", "-F", "json"])["Queue"]["workq"]),
        "queue_type total_jobs state_count enabled started",
    );
    let server = json(lab, &["qstat", "-B", "-f", "-F", "json"]);
    assert_eq!(server["Server"]["head"]["scheduling"], "False");
}

/// What the module `pbs` lets a hook do, in pbs_server and in a mom.
fn hooks(lab: &PbsLab) {
    let script = lab.dir().join("work/probe.py");
    fs::write(&script, PROBE).unwrap();
    let import = format!(
        "import hook probe application/x-python default {}",
        script.display()
    );
    for line in [
        "create hook probe",
        "set hook probe event = \"queuejob,exechost_periodic\"",
        "set hook probe freq = 2",
        &import,
        "set hook probe enabled = true",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    let options = [
        "qsub",
        "-l",
        "select=1:ncpus=1",
        "-l",
        "walltime=300",
        "-l",
        "wish=a",
    ];
    let (status, text) = said(lab, Some("user1"), &options);
    assert_eq!(
        (status, text.trim()),
        (32, &format!("qsub: {OF_SERVER}")[..])
    );
    until("the hook on the mom has said what came of it", || {
        let vnodes = json(lab, &["pbsnodes", "-av", "-F", "json"]);
        let vnode = &vnodes["nodes"]["n1"];
        // What a hook sets holds over what a mom has by herself.
        vnode["comment"] == OF_MOM && vnode["resources_available"]["ngpus"] == 7
    });
    // One that is deleted goes on until all moms have said that they have it no more.
    for line in ["set hook probe enabled = false", "delete hook probe"] {
        ran(lab.run("qmgr", &["-c", line]));
    }
}

#[test]
fn pbs_refuses_answers_and_lets_hooks_do_what_is_known_of_it() {
    let Some(prefix) = pbs("words and forms of PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_words");
    let spec = LabSpec {
        nodes: 1.into(),
        node_type: "dgx-h100".into(),
        pbs: Some(prefix),
        ..LabSpec::unique("pbs-words")
    };
    let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
    for line in [
        "set server scheduling = false",
        "create resource wish type=string,flag=m",
        "create resource kept type=long,flag=r",
        "create resource shown type=string,flag=h",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    let options = [
        "-h",
        "-l",
        "select=1:ncpus=1",
        "-l",
        "walltime=300",
        "-l",
        "wish=a",
    ];
    let job = ran(lab.qsub(Some("user1"), &options, "sleep 1000\n"));
    forms(&lab, &job);
    hooks(&lab);
    for (options, status, words) in SUBMITTED {
        let all = [&["qsub"], options].concat();
        holds(
            &format!("{all:?}"),
            &said(&lab, Some("user1"), &all),
            status,
            words,
        );
    }
    for (line, status, words) in MANAGED {
        holds(
            line,
            &said(&lab, None, &["qmgr", "-c", line]),
            status,
            words,
        );
    }
    for line in ["set server scheduling = false", "delete hook nosuch"] {
        let (status, text) = said(&lab, Some("user1"), &["qmgr", "-c", line]);
        assert!(
            status != 0 && text.contains("nauthorized"),
            "{line}: {status} {text}"
        );
    }
    for (user, words, status, sentence) in OF_JOBS {
        let words: Vec<&str> = words
            .iter()
            .map(|word| if *word == "JOB" { &job } else { *word })
            .collect();
        let found = said(&lab, user, &words);
        holds(
            &words.join(" "),
            &found,
            status,
            &sentence.replace("JOB", &job),
        );
    }
    ran(lab.wait_job(&job, &["F"], LIMIT));
    let (status, text) = said(&lab, None, &["qstat", &job]);
    let over =
        format!("qstat: {job} Job has finished, use -x or -H to obtain historical job information");
    holds("qstat", &(status, text), 35, &over);
    ran(lab.down());
}
