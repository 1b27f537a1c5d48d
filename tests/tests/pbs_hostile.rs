//! What an ordinary user may write to a PBS with gpuos: each attempt is refused with a sentence
//! or runs as any job does, no daemon ends, no node leaves service, and root makes no file for it.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use gpuos_tests::{costs, pbs};

use crate::pbs_full::{BEYOND, Full, LIMIT, SLICE, TURNS, WHOLE};
use crate::pbs_site::{ran, reaches};

/// More than a line of any table of PBS.
const LONG: usize = 64 << 10;

/// A variable of whoever submits, whose value has lines and quotes that others would end at.
const FORGED: &str = "GPUOS_FORGED";

/// Words that come from no place of gpuos or PBS where a sentence was meant.
const BROKEN: [&str; 4] = ["panicked", "Traceback", "RUST_BACKTRACE", "Segmentation"];

/// What is written: options, and lines in front of the script. With the words of its refusal where it has to be refused.
struct Attempt {
    what: &'static str,
    options: Vec<OsString>,
    script: Vec<u8>,
    refused: Option<&'static str>,
}

fn attempt(what: &'static str, options: &[&str]) -> Attempt {
    Attempt {
        what,
        options: options.iter().map(OsString::from).collect(),
        script: b"echo $CUDA_VISIBLE_DEVICES\n".to_vec(),
        refused: None,
    }
}

impl Attempt {
    fn refused(mut self, why: &'static str) -> Attempt {
        self.refused = Some(why);
        self
    }

    fn script(mut self, text: &[u8]) -> Attempt {
        self.script = [text, b"\necho $CUDA_VISIBLE_DEVICES\n"].concat();
        self
    }

    fn bytes(mut self, option: &[u8]) -> Attempt {
        self.options.push(OsString::from_vec(option.to_vec()));
        self
    }
}

/// A file that nobody makes on any host, as a command in the place of a value would.
const CANARY: &str = "/var/tmp/made-by-a-value";

fn attempts() -> Vec<Attempt> {
    let of = |what, base: &[&str], more: &[&str]| attempt(what, &[base, more].concat());
    let long = "A".repeat(LONG);
    let counts = "gpuos counts it";
    vec![
        attempt(
            "an unknown level",
            &["-l", "select=1:ngpus=1", "-l", "gpuos_topology=moon"],
        )
        .refused("gpuos_topology=moon"),
        of(
            "a command in a value",
            &WHOLE,
            &["-l", &format!("gpuos_topology=\"leaf;touch {CANARY}\"")],
        )
        .refused("gpuos_topology="),
        of(
            "a command in a value in quotes",
            &WHOLE,
            &["-l", &format!("gpuos_power=\"$(touch {CANARY})\"")],
        )
        .refused("gpuos_power="),
        of("a command in lines of the script", &WHOLE, &[])
            .script(format!("#PBS -l gpuos_mps=\"`touch {CANARY}`\"").as_bytes())
            .refused("gpuos_mps="),
        of(
            "a second line in a value",
            &WHOLE,
            &["-l", "gpuos_power=\"300W\nngpus=8\""],
        )
        .refused("gpuos_power=300W"),
        of(
            "a value of 64 KiB",
            &WHOLE,
            &["-l", &format!("gpuos_power={long}")],
        )
        .refused(""),
        of("a value of 64 KiB in the script", &WHOLE, &[])
            .script(format!("#PBS -l gpuos_clocks={long}").as_bytes()),
        attempt("bytes that are no text", &["-l", "select=1:ngpus=1", "-l"])
            .bytes(b"gpuos_power=\xff\xfe\x80300W")
            .refused(""),
        of("a NUL in the script", &WHOLE, &[]).script(b"#PBS -l gpuos_power=300W\0gpuos_mps=on"),
        of(
            "all variables, with lines and quotes",
            &WHOLE,
            &["-l", "gpuos_power=300W", "-V"],
        ),
        of(
            "a name with a command",
            &WHOLE,
            &[
                "-l",
                "gpuos_power=300W",
                "-N",
                "x$(touch${IFS}/var/tmp/made-by-a-value)'",
            ],
        ),
        of(
            "variables with lines and quotes",
            &WHOLE,
            &["-l", "gpuos_power=300W", "-v", FORGED],
        ),
        of(
            "a variable of 64 KiB",
            &SLICE,
            &["-v", &format!("A={long}")],
        ),
        of(
            "forged variables of gpuos and PBS",
            &SLICE,
            &[
                "-v",
                "CUDA_VISIBLE_DEVICES=0,GPUOS_MIG_UUIDS=MIG-0,GPUOS_GPUS=7,GPUOS_MEM_GRANT=99999999999,LD_PRELOAD=/nonexistent.so,PBS_JOBID=1.head,PBS_HOOK_CONFIG_FILE=/dev/zero,GPUOS_CONF=/dev/zero",
            ],
        ),
        attempt(
            "counts of slices by hand",
            &[
                "-l",
                "select=1:ncpus=1:gpuos_mig_compute=7:gpuos_mig_memory=8",
            ],
        ),
        of(
            "counts of slices by hand beside slices",
            &[
                "-l",
                "select=1:ncpus=1:gpuos_mig_compute=0:gpuos_mig_memory=0",
            ],
            &["-l", "gpuos_mig=7g.80gb"],
        ),
        attempt(
            "a part by hand",
            &["-l", "select=1:ncpus=1:gpuos_share_parts=4"],
        )
        .refused(counts),
        of(
            "memory beyond by hand",
            &BEYOND,
            &["-l", "gpuos_mem_beyond=1kb"],
        )
        .refused(counts),
        attempt(
            "memory beyond by hand in a chunk",
            &["-l", "select=1:ngpus=1:mem=9gb:gpuos_mem_beyond=9gb"],
        )
        .refused(counts),
        attempt(
            "a chunk behind a value",
            &[
                "-l",
                "select=1:ngpus=1:mem=1gb",
                "-l",
                "gpuos_mem=\"1500M'+1:ngpus=8\"",
            ],
        )
        .refused("gpuos_mem=1500M"),
        of("hosts of checkpoints", &WHOLE, &["-l", "gpuos_hosts=n1"]).refused(""),
        of("a count of refusals", &WHOLE, &["-l", "gpuos_vetoes=-1"]).refused(""),
        attempt(
            "more linked GPUs than any host has",
            &["-l", "select=1:ngpus=1:gpuos_linked=99999"],
        ),
        attempt(
            "a host by what it shows",
            &["-l", "select=1:ncpus=1:gpuos_host=free=0"],
        ),
        attempt(
            "a resource that no vnode has",
            &["-l", "select=1:ncpus=1:nosuch=1"],
        )
        .refused("nosuch"),
        attempt(
            "more GPUs than numbers",
            &[
                "-l",
                "select=99999999999:ngpus=99999999999999999999",
                "-l",
                "gpuos_power=300W",
            ],
        )
        .refused(""),
        attempt(
            "a gang on one host, scattered",
            &[
                "-l",
                "select=2:ngpus=1",
                "-l",
                "place=scatter",
                "-l",
                "gpuos_topology=node",
            ],
        )
        .refused("gpuos_topology=node"),
        of("slices in turns", &TURNS, &["-l", "gpuos_mig=1g.10gb"]).refused("gpuos_"),
        of("slices on a GPU alone", &SLICE, &["-l", "place=excl"]),
        of(
            "slices of another group",
            &SLICE,
            &["-l", "place=group=host"],
        ),
        of(
            "a name with escapes",
            &WHOLE,
            &["-l", "gpuos_power=300W", "-N", "\x1b[31mred\x1b]0;x\x07"],
        ),
        of(
            "a name of 64 KiB",
            &WHOLE,
            &["-l", "gpuos_power=300W", "-N", &long],
        )
        .refused(""),
        of(
            "checkpoints that nobody keeps",
            &WHOLE,
            &["-l", "gpuos_checkpoint=10m"],
        )
        .refused("gpuos_checkpoint="),
        of(
            "a rule that needs a planner",
            &WHOLE,
            &["-l", "gpuos_placement=\"affinity:a,b\""],
        )
        .refused("gpuos_placement="),
        of("an array with a value for each", &SLICE, &["-J", "1-3"]),
        of("a queue that is not there", &SLICE, &["-q", "moon"]).refused("queue"),
    ]
}

impl Full {
    /// A command of PBS by an ordinary user, with what is given to its standard input.
    fn by_user(&self, user: &str, program: &str, words: &[OsString], input: &[u8]) -> Output {
        let mut command = ran(self.lab.command_on("head", Some(user), program));
        command.args(words);
        let value = "one\n#PBS -l gpuos_mps=on\n\"'\\,CUDA_VISIBLE_DEVICES=0'\n";
        command.env(FORGED, format!("{value}$(touch {CANARY})"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut pipe = child.stdin.take().expect("piped");
        // One that is refused by its options reads nothing.
        let _ = pipe.write_all(input);
        drop(pipe);
        child.wait_with_output().expect("it ends")
    }

    /// Files of root that are newer than a file, where users' jobs could have it make some.
    fn made_by_root(&self, since: &str) -> String {
        let work = self.work.display().to_string();
        let homes = self.lab.dir().join("home").display().to_string();
        let words = [
            &work[..],
            &homes,
            "/etc",
            "/var/tmp",
            "-xdev",
            "-newer",
            since,
            "-user",
            "root",
            "-type",
            "f",
            // Of qstat, run by root here.
            "!",
            "-name",
            ".pbs_last_query_*",
        ];
        let all = self.hosts.iter().map(String::as_str).chain(["head"]);
        let found = all.map(|host| ran(self.lab.run_on(host, None, "find", &words)));
        found.collect()
    }
}

/// What a user may try on jobs that are there: his own one, held, and another user's.
fn changes(site: &Full) {
    let held = |options: &[&str]| site.submit("user1", &[&["-h"], options].concat(), "true\n");
    let long = format!("gpuos_power={}", "9".repeat(LONG));
    let (own, beyond) = (held(&WHOLE), held(&BEYOND));
    for (job, change) in [
        (&own, "gpuos_mem_beyond=1kb"),
        (&own, "gpuos_share_parts=1"),
        (&own, "gpuos_hosts=n1"),
        (&own, "gpuos_vetoes=0"),
        (&own, "gpuos_mig=1g.10gb"),
        (&own, "gpuos_power=\"300W\nngpus=8\""),
        (&own, &long),
        (
            &beyond,
            "select=1:ngpus=1:mem=1kb:gpuos_mem_beyond=9gb:gpuos_share_parts=1",
        ),
        (&beyond, "gpuos_mem=99999G"),
    ] {
        let shown: String = change.chars().take(60).collect();
        let before = site.attribute(job, "Resource_List.select");
        let words = ["-l", change, job].map(OsString::from);
        let out = site.by_user("user1", "qalter", &words, b"");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        eprintln!("qalter -l {shown:?}: {} {said}", out.status);
        assert!(!out.status.success(), "{shown}");
        assert!(
            !said.trim().is_empty() && BROKEN.iter().all(|word| !said.contains(word)),
            "{said}"
        );
        assert_eq!(site.attribute(job, "Resource_List.select"), before);
    }
    for (program, words) in [
        ("qalter", ["-l", "gpuos_power=off", &own]),
        ("qdel", ["-W", "force", &own]),
        ("qmgr", ["-c", "delete hook gpuos", ""]),
        (
            "qmgr",
            ["-c", "export hook gpuos application/x-config default", ""],
        ),
    ] {
        let words: Vec<OsString> = words
            .iter()
            .filter(|word| !word.is_empty())
            .map(OsString::from)
            .collect();
        let out = site.by_user("user2", program, &words, b"");
        assert!(!out.status.success(), "{program} {words:?}: {out:?}");
    }
    for job in [&own, &beyond] {
        ran(site.lab.run("qdel", &[job]));
    }
}

#[test]
fn whatever_a_user_writes_is_refused_with_a_sentence_or_runs_as_any_job() {
    let Some(prefix) = pbs("hostile submissions in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_hostile");
    let site = Full::up(&prefix, "pbs-hostile");
    let pids = site.pids();
    let since = site.lab.dir().join("since");
    fs::write(&since, "").unwrap();
    let mut taken = Vec::new();
    let (mut refused, all) = (0, attempts());
    for one in &all {
        let work = format!("{}/", site.work.display());
        let mut words = ["-j", "oe", "-o", &work].map(OsString::from).to_vec();
        words.extend(one.options.iter().cloned());
        let out = site.by_user("user1", "qsub", &words, &one.script);
        let (told, said) = (
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
        );
        let said: String = said.chars().take(300).collect();
        eprintln!("{}: {} {told}{said}", one.what, out.status);
        assert!(
            BROKEN.iter().all(|word| !said.contains(word)),
            "{}: {said}",
            one.what
        );
        match out.status.success() {
            true => {
                assert_eq!(one.refused, None, "{} was taken: {told}", one.what);
                taken.push((one.what, told.trim().to_owned()));
            }
            false => {
                refused += 1;
                assert!(!said.trim().is_empty(), "{}: {:?}", one.what, out.status);
                if let Some(why) = one.refused {
                    assert!(said.contains(why), "{}: {said}", one.what);
                }
            }
        }
    }
    changes(&site);
    eprintln!("{refused} of {} are refused", all.len());

    // Those that may run do, and what can never run is deleted.
    sleep(Duration::from_secs(5));
    for (what, job) in &taken {
        let waits = || matches!(&site.state(job)[..], "Q" | "H" | "W");
        if waits() {
            eprintln!("{what} waits: {}", site.attribute(job, "comment"));
        }
    }
    site.until("what runs has ended", || {
        taken
            .iter()
            .all(|(_, job)| !matches!(&site.state(job)[..], "R" | "E" | "B"))
    });
    for (what, job) in &taken {
        let _ = site.lab.run("qdel", &[job]);
        reaches(&site.lab, job, "F", LIMIT);
        eprintln!(
            "{what}: {} {}",
            site.attribute(job, "Exit_status"),
            site.attribute(job, "comment")
        );
    }
    // A program with forged variables finds what its job was given.
    let forged = taken.iter().find(|(what, _)| what.starts_with("forged"));
    let (_, forged) = forged.expect("it was taken");
    let said = site.lab.job_output(forged);
    assert!(said.contains("MIG-") && !said.contains("MIG-0\n"), "{said}");

    assert_eq!(site.pids(), pids);
    let nodes = ran(site.lab.run("pbsnodes", &["-av"]));
    assert!(
        !nodes.contains("offline") && !nodes.contains("down"),
        "{nodes}"
    );
    for host in site.lab.host_names() {
        let there = site.lab.run_on(&host, None, "test", &["-e", CANARY]);
        assert!(there.is_err(), "{CANARY} on {host}");
    }
    assert_eq!(site.made_by_root(&since.display().to_string()), "");
    site.nothing_is_left();
    // What another user asks for is served as before.
    let job = site.submit("user2", &SLICE, "echo $CUDA_VISIBLE_DEVICES\n");
    reaches(&site.lab, &job, "F", LIMIT);
    assert!(site.lab.job_output(&job).starts_with("MIG-"));
    site.nothing_is_left();
    ran(site.lab.down());
}
