//! gpuosd's socket, which every user of a node may open.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpuos_core::wire::{MAX_REQUEST, Request};

use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge, known};
use crate::stage::{Stage, first_line};
use crate::users::{ALICE, EVE, MALLORY};

/// SECURITY.md's name of the input.
const INPUT: &str = "Requests on gpuosd's socket";

const HELLO: &str = "{\"ask\":\"hello\",\"protocol\":1,\"client\":\"gpuos\"}\n";

/// Accounts that open connections; they need no entry in passwd for that.
const CROWD: [u32; 6] = [61_001, 61_002, 61_011, 61_012, 61_013, 61_014];

/// An account that has no job anywhere.
const NOBODY: u32 = 61_021;

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    forbidden(&mut all);
    nonsense(&mut all);
    crowds(&mut all);
    others(&mut all);
    audits(&mut all);
    all
}

/// Requests that are root's alone. `{victim}` stands for the job to be left alone, `{gpu}` for its GPU.
fn forbidden(all: &mut Vec<Attempt>) {
    let one = "is refused as forbidden, and the GPUs are in service";
    for (name, request) in [
        (
            "drains a GPU",
            "{\"ask\":\"admin\",\"verb\":\"drain\",\"gpus\":[0],\"reason\":\"x\",\"force\":true}",
        ),
        (
            "takes the node offline",
            "{\"ask\":\"admin\",\"verb\":\"offline\",\"gpus\":[],\"reason\":\"x\",\"force\":true}",
        ),
        (
            "puts a GPU online by force",
            "{\"ask\":\"admin\",\"verb\":\"online\",\"gpus\":[0],\"reason\":\"x\",\"force\":true}",
        ),
        ("has gpuos.toml read anew", "{\"ask\":\"reload\"}"),
        ("reads the audit log", "{\"ask\":\"audit\",\"lines\":1000}"),
        (
            "reports a step of another's job",
            "{\"ask\":\"step-start\",\"id\":{\"job\":{victim},\"step\":7},\"uid\":61001,\"gpus\":[0,1,2,3,4,5,6]}",
        ),
        (
            "reports a step as root's",
            "{\"ask\":\"step-start\",\"id\":{\"job\":4000000,\"step\":0},\"uid\":0,\"gpus\":[0]}",
        ),
        (
            "reports the end of another's step",
            "{\"ask\":\"step-end\",\"id\":{\"job\":{victim},\"step\":4294967291}}",
        ),
        (
            "asks for another's slices",
            "{\"ask\":\"step-start\",\"id\":{\"job\":{victim},\"step\":7},\"uid\":61001,\"gpus\":[],\"mig\":{\"request\":\"3g.40gb\",\"slices\":[0,1,2,3,4,5,6,7],\"tasks\":1}}",
        ),
        (
            "sets a power cap on another's GPU",
            "{\"ask\":\"step-start\",\"id\":{\"job\":{victim},\"step\":7},\"uid\":61001,\"gpus\":[0,1,2,3],\"asked\":{\"power\":{\"watts\":200}}}",
        ),
    ] {
        all.push(
            attempt(INPUT, name, one, move |stage| {
                let text = request.replace("{victim}", &stage.victims.slices.to_string());
                assert!(serde_json::from_str::<Request>(&text).is_ok(), "{text}");
                let told = stage.talk(MALLORY, "n1", format!("{HELLO}{text}\n").as_bytes(), 2);
                judge(move |stage| {
                    let told = told.heard();
                    let answers = told
                        .iter()
                        .filter(|line| !line.contains("\"answer\":\"hello\""));
                    let refused = answers
                        .clone()
                        .all(|line| line.contains("\"answer\":\"refused\""));
                    ensure(refused && answers.count() > 0, || format!("told {told:?}"))?;
                    let out = stage.unwell("n1")?;
                    ensure(out.is_empty(), || format!("Extra is {out}"))
                })
            })
            .short(),
        );
    }
}

/// What is no request.
fn nonsense(all: &mut Vec<Attempt>) {
    let alive = "gpuosd answers root, and is the same process";
    let long = "x".repeat(8 * MAX_REQUEST).into_bytes();
    let nested = format!("{HELLO}{}\n", "[".repeat(MAX_REQUEST - 2)).into_bytes();
    let deep = format!("{HELLO}{{\"ask\":{}\n", "{\"a\":".repeat(3000)).into_bytes();
    let bytes: Vec<u8> = (0..4096u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let flood = format!("{HELLO}{}", "nonsense\n".repeat(20_000)).into_bytes();
    for (name, text) in [
        ("a line of 128 KiB", long),
        ("nested brackets", nested),
        ("nested objects", deep),
        ("random bytes", bytes),
        ("half a message", b"{\"ask\":\"hel".to_vec()),
        (
            "another protocol",
            b"{\"ask\":\"hello\",\"protocol\":99,\"client\":\"x\"}\n".to_vec(),
        ),
        ("no hello", b"{\"ask\":\"status\"}\n".to_vec()),
        ("20,000 lines of nonsense at once", flood),
    ] {
        all.push(attempt(
            INPUT,
            format!("sends {name}"),
            alive,
            move |stage| {
                let pid = stage.cluster.lab.gpuosd_pid("n2");
                let told = stage.talk(MALLORY, "n2", &text, usize::MAX);
                judge(move |stage| {
                    let status = told
                        .heard()
                        .into_iter()
                        .find(|line| line.contains("\"answer\":\"status\""));
                    ensure(status.is_none(), || format!("it was told {status:?}"))?;
                    stage.status("n2")?;
                    let now = stage.cluster.lab.gpuosd_pid("n2");
                    ensure(pid.is_some() && now == pid, || {
                        format!("{pid:?} is {now:?}")
                    })
                })
            },
        ));
    }
}

/// Who takes up the room of others.
fn crowds(all: &mut Vec<Attempt>) {
    let own = "another user, and root, are still answered";
    all.push(
        attempt(
            INPUT,
            "six accounts with eight watchers each",
            own,
            |stage| {
                let socket = stage.socket("n3").display().to_string();
                let mut crowd: Vec<_> = CROWD
                    .map(|uid| stage.part(uid, "hold", &[&socket, "8"]))
                    .into_iter()
                    .collect();
                let held: Vec<String> = crowd.iter_mut().map(first_line).collect();
                crowd.into_iter().for_each(|one| stage.keep(one));
                let told = stage.talk(
                    ALICE,
                    "n3",
                    format!("{HELLO}{{\"ask\":\"status\"}}\n").as_bytes(),
                    2,
                );
                judge(move |stage| {
                    let told = told.heard();
                    let answered = told
                        .iter()
                        .any(|line| line.contains("\"answer\":\"status\""));
                    ensure(answered, || {
                        format!("{held:?}; the other was told {told:?}")
                    })?;
                    stage.status("n3").map(drop)
                })
            },
        )
        .short(),
    );
    all.push(attempt(
        INPUT,
        "a user without jobs wants more connections than eight",
        "he gets eight, and one with GPUs on the node those of her need besides",
        |_| {
            judge(move |stage| {
                // The victim has two GPUs of n2, four more for each, once gpuosd has slurmctld's word.
                let both = || {
                    let jobs = stage.status("n2").ok()?.jobs;
                    let own = jobs.iter().filter(|job| job.uid == ALICE.uid);
                    let gpus: usize = own.map(|job| job.gpus.len()).sum();
                    (gpus == 2).then_some(())
                };
                let known = stage.try_until(both);
                known.ok_or("gpuosd does not know the victim's GPUs")?;
                let socket = stage.socket("n2").display().to_string();
                let wanted = [(NOBODY, 8), (ALICE.uid, 8 + 2 * 4)];
                let held = wanted.map(|(uid, most)| {
                    let mut one = stage.part(uid, "places", &[&socket, "18"]);
                    let held: usize = first_line(&mut one).parse().unwrap_or(0);
                    stage.keep(one);
                    (uid, most, held)
                });
                let right = held.iter().all(|(_, most, held)| most == held);
                ensure(right, || format!("(uid, wanted, held): {held:?}"))?;
                stage.status("n2").map(drop)
            })
        },
    ));
    all.push(attempt(
        INPUT,
        "asks for the status as fast as it can",
        "it takes gpuosd less than a quarter of a core",
        |stage| {
            let pid = stage.cluster.lab.gpuosd_pid("n4").unwrap_or_default();
            let before = ticks(pid);
            let begun = Instant::now();
            let socket = stage.socket("n4").display().to_string();
            let mut flood = stage.part(EVE.uid, "flood", &[&socket, "4"]);
            let watch = std::thread::spawn(move || {
                let answers = first_line(&mut flood);
                let used = ticks(pid).saturating_sub(before);
                let _ = flood.wait();
                // A tick is 10 ms on every Linux that Slurm runs on.
                let share = used as f64 * 10.0 / begun.elapsed().as_millis() as f64;
                (answers, share)
            });
            judge(move |stage| {
                let (answers, share) = watch.join().map_err(|_| "nobody looked")?;
                println!(
                    "the flood: {answers} answers, {:.0} % of a core",
                    share * 100.0
                );
                ensure(share < 0.25, || {
                    format!("{:.0} % of a core for {answers} answers", share * 100.0)
                })?;
                stage.status("n4").map(drop)
            })
        },
    ));
}

/// CPU time of a node's gpuosd.
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|one| one.parse::<u64>().ok())
        .sum()
}

/// What is told of others' jobs.
fn others(all: &mut Vec<Attempt>) {
    let own = "nothing of other users' jobs: no job, uid or process";
    for (name, request, node) in [
        ("asks for the status", Request::Status, "n1"),
        (
            "asks for the status of a node with MPS",
            Request::Status,
            "n2",
        ),
        ("asks for the slices", Request::Mig, "n1"),
        ("asks for memory in tiers", Request::Memory, "n1"),
    ] {
        all.push(
            attempt(INPUT, name, own, move |stage| {
                let text = serde_json::to_string(&request).expect("JSON");
                let told = stage.talk(EVE, node, format!("{HELLO}{text}\n").as_bytes(), 2);
                judge(move |stage| {
                    let told = told.heard();
                    ensure(!told.is_empty(), || "not answered".into())?;
                    told.iter().try_for_each(|line| names_nobody(stage, line))
                })
            })
            .short(),
        );
    }
    all.push(
        attempt(
            INPUT,
            "watches from the start",
            own,
            |stage: &Stage| -> Judge {
                let file = watched(stage);
                let socket = stage.socket("n1").display().to_string();
                stage.part_to(MALLORY, "watch", &[&socket], &file);
                stage.until("a watcher is heard", || {
                    fs::read_to_string(&file)
                        .is_ok_and(|text| text.contains("\"hello\""))
                        .then_some(())
                });
                known(Ok(()))
            },
        )
        .in_wave(Wave::Early)
        .short(),
    );
    // Judged when jobs have come since.
    all.push(
        attempt(
            INPUT,
            "is told what happens to others' jobs",
            own,
            |stage: &Stage| -> Judge {
                let job = stage.sbatch(ALICE, &["-w", "n1", "--gpuos-mig=1g.10gb"], "sleep 1");
                judge(move |stage| {
                    let job = job?;
                    stage.cluster.wait(job, &["COMPLETED"]);
                    stage.try_until(|| {
                        stage
                            .audit("n1")
                            .contains(&format!("\"job\":{job}"))
                            .then_some(())
                    });
                    std::thread::sleep(Duration::from_secs(1));
                    let text = fs::read_to_string(watched(stage)).unwrap_or_default();
                    ensure(!text.contains(&format!("\"job\":{job},")), || {
                        let line = text
                            .lines()
                            .find(|line| line.contains(&format!("\"job\":{job},")));
                        line.unwrap_or_default().to_owned()
                    })?;
                    // The last one may not be there to its end.
                    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
                    let mut told = whole.lines().filter(|line| line.starts_with('{'));
                    told.try_for_each(|line| names_nobody(stage, line))
                })
            },
        )
        .short(),
    );
}

/// What is told of the audit log, of which a user may read what is about his own jobs.
fn audits(all: &mut Vec<Attempt>) {
    let ask = |stage: &Stage, user, jobs: &[u32]| {
        let request = |job: &u32| {
            let (lines, job) = (500, Some((*job).into()));
            let request = Request::Audit { lines, job };
            serde_json::to_string(&request).expect("JSON") + "\n"
        };
        let text: String = jobs.iter().map(request).collect();
        let text = format!("{HELLO}{text}");
        stage.talk(user, "n1", text.as_bytes(), 1 + jobs.len())
    };
    all.push(
        attempt(
            INPUT,
            "asks for the audit log about another's job, and about none",
            "each is refused in the same words, and nothing is told",
            move |stage| {
                let victims = stage.victims;
                let jobs = [
                    victims.plain,
                    victims.capped,
                    victims.slices,
                    0,
                    3_999_999,
                    u32::MAX,
                ];
                let told = ask(stage, MALLORY, &jobs);
                judge(move |_| {
                    let told = told.heard();
                    let answers = told.get(1..).unwrap_or_default();
                    let forbidden = |line: &String| line.contains("\"code\":\"forbidden\"");
                    let same = answers.iter().all(|line| *line == answers[0]);
                    let all = answers.len() == jobs.len();
                    ensure(all && same && answers.iter().all(forbidden), || {
                        format!("told {told:?}")
                    })
                })
            },
        )
        .short(),
    );
    all.push(attempt(
        INPUT,
        "asks for the audit log about a job of one's own",
        "it is told, and nothing of other jobs",
        move |stage| {
            let own = stage.victims.capped;
            let told = ask(stage, ALICE, &[own]);
            judge(move |_| {
                let told = told.heard();
                let answer = told.last().cloned().unwrap_or_default();
                let value: serde_json::Value =
                    serde_json::from_str(&answer).map_err(|e| format!("{e}: {told:?}"))?;
                let lines = value["lines"].as_array().cloned().unwrap_or_default();
                let is_own = |line: &serde_json::Value| {
                    let line = line.as_str().unwrap_or_default();
                    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
                    line["job"] == own && line["job_uid"] == ALICE.uid
                };
                ensure(!lines.is_empty() && lines.iter().all(is_own), || answer)
            })
        },
    ));
}

fn watched(stage: &Stage) -> PathBuf {
    stage.path("log/watched")
}

/// `Ok` where a line of JSON has no number of a job, user or process of the victim's.
fn names_nobody(stage: &Stage, line: &str) -> Result<(), String> {
    let value: serde_json::Value =
        serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
    let mut found = Vec::new();
    look(&value, "", &mut found);
    let jobs = stage.victims.all().map(u64::from);
    let wrong = found.iter().find(|(key, number)| match &key[..] {
        // A number under "jobs" that is in no list is how many there are.
        "job" | "id" | "jobs[]" | "holder" => jobs.contains(number),
        "uid" => *number == u64::from(ALICE.uid),
        "pid" | "pids[]" => true,
        _ => false,
    });
    match wrong {
        None => Ok(()),
        Some((key, number)) => Err(format!("{key} {number} is told")),
    }
}

/// All numbers, each with the key that it stands under; `key[]` in a list.
fn look(value: &serde_json::Value, key: &str, found: &mut Vec<(String, u64)>) {
    match value {
        serde_json::Value::Object(all) => {
            all.iter().for_each(|(key, value)| look(value, key, found));
        }
        serde_json::Value::Array(all) => {
            let key = format!("{key}[]");
            all.iter().for_each(|value| look(value, &key, found));
        }
        other => found.extend(other.as_u64().map(|number| (key.to_owned(), number))),
    }
}
