//! What is run, in which order, and what is made of the answers.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use gpuos_core::health::ExtraPart;
use gpuos_workload::Silent;

use super::{Action, Outcome, act, is_set_down, jobs_on, resume, set_down};
use crate::slurm::sample::record;
use crate::{Machine, Output, Recorded};

/// Commands that have to come in this order, and what they answer.
struct Play(Mutex<VecDeque<(String, Output)>>);

impl Play {
    fn new(lines: &[(&str, Result<&str, &str>)]) -> Play {
        let answer = |told: &Result<&str, &str>| Output {
            ok: told.is_ok(),
            stdout: told.unwrap_or_default().into(),
            stderr: told.err().unwrap_or_default().into(),
        };
        let lines = lines
            .iter()
            .map(|(line, told)| (line.to_string(), answer(told)));
        Play(Mutex::new(lines.collect()))
    }

    /// Does the action; all commands have to be used up.
    fn act(self, action: &Action) -> Outcome {
        let outcome = act(&self, "n1", action);
        assert!(
            self.0.lock().unwrap().is_empty(),
            "{action:?} ran too few commands"
        );
        outcome
    }
}

/// A whole second, in which a credential may just have been revoked, is over.
const PAUSE: &str = "pause 1";

impl Machine for Play {
    fn pause(&self, time: Duration) {
        let seconds = time.as_secs().to_string();
        self.run("pause", &[&seconds]).expect("a play answers");
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<Output> {
        let line = format!("{program} {}", args.join(" "));
        match self.0.lock().unwrap().pop_front() {
            Some((wanted, output)) => {
                assert_eq!(line, wanted);
                Ok(output)
            }
            None => panic!("{line} was not expected"),
        }
    }

    fn run_within(&self, _: Duration, program: &str, args: &[&str]) -> Result<Output> {
        self.run(program, args)
    }

    /// What squeue answers is given as what scontrol would.
    fn run_with_env(
        &self,
        _: Duration,
        (name, format): (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        let mut output = self.run(program, args)?;
        match (program, name, format) {
            ("squeue", "SQUEUE_FORMAT2", _) | ("scontrol", "SLURM_TIME_FORMAT", "%s") => {}
            other => panic!("{other:?}"),
        }
        if output.ok && program == "squeue" {
            output.stdout = crate::slurm::rows_of(&output.stdout, format);
        }
        Ok(output)
    }
}

const SHOW: &str = "scontrol show node n1";
const AWAY: &str = "slurm_load_node error: Unable to contact slurm controller (connect failure)\n";

fn node(state: &str, rest: &str) -> String {
    format!("NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=1\n   {rest}\n")
}

fn out(gpu: u8) -> Action {
    Action::Publish(ExtraPart {
        out: vec![gpu.try_into().unwrap()],
        ..ExtraPart::default()
    })
}

#[test]
fn extra_keeps_the_administrators_text_and_is_written_only_when_it_differs() {
    let before = node("IDLE", "Extra=rack=7 row=2");
    let after = node("IDLE", "Extra=rack=7 row=2 [gpuos:1 out=5]");
    let write = "scontrol update NodeName=n1 Extra=rack=7 row=2 [gpuos:1 out=5]";
    let play = Play::new(&[(SHOW, Ok(&before)), (write, Ok("")), (SHOW, Ok(&after))]);
    assert!(matches!(play.act(&out(5)), Outcome::Done(_)));
    let play = Play::new(&[(SHOW, Ok(&after))]);
    assert!(matches!(play.act(&out(5)), Outcome::Nothing(_)));
    // Somebody wrote at the same moment.
    let play = Play::new(&[(SHOW, Ok(&before)), (write, Ok("")), (SHOW, Ok(&before))]);
    assert!(matches!(play.act(&out(5)), Outcome::NoAnswer(_)));
}

#[test]
fn a_slurmctld_that_is_away_is_asked_again_and_a_refusal_is_not() {
    let drain = Action::Drain {
        reason: "gpuos: x".into(),
    };
    for action in [out(1), drain] {
        assert!(matches!(
            Play::new(&[(SHOW, Err(AWAY))]).act(&action),
            Outcome::NoAnswer(_)
        ));
        assert!(matches!(
            act(&Recorded::default(), "n1", &action),
            Outcome::NoAnswer(_)
        ));
    }
    let kill = Action::Kill {
        job: 7.into(),
        step: Some(0),
    };
    let refused = "scancel: error: Kill job error on job step id 7.0: Job/step already completing or completed\n";
    let here = job("RUNNING", &[("NodeList", "n1")]);
    assert!(matches!(
        Play::new(&[(QUEUE, Ok(&here)), ("scancel 7.0", Err(refused))]).act(&kill),
        Outcome::Refused(_)
    ));
    assert!(matches!(
        Play::new(&[(QUEUE, Ok(&here)), ("scancel 7.0", Err(AWAY))]).act(&kill),
        Outcome::NoAnswer(_)
    ));
}

#[test]
fn a_node_is_drained_once_and_only_our_own_drain_is_taken_back() {
    let drain = Action::Drain {
        reason: "GPU 3: Xid 79".into(),
    };
    let update = "scontrol update NodeName=n1 State=DRAIN Reason=gpuos: GPU 3: Xid 79";
    let idle = node("IDLE", "Extra=");
    let play = Play::new(&[(SHOW, Ok(&idle)), (update, Ok(""))]);
    assert!(matches!(play.act(&drain), Outcome::Done(_)));
    let ours = node(
        "IDLE+DRAIN",
        "Reason=gpuos: GPU 3: Xid 79 [root@2026-11-20T21:40:00]",
    );
    let play = Play::new(&[(SHOW, Ok(&ours))]);
    assert!(matches!(play.act(&drain), Outcome::Nothing(_)));

    let undrain = Action::Undrain {
        reason: "gpuos: GPU 3: Xid 79".into(),
    };
    let resume = "scontrol update NodeName=n1 State=RESUME";
    let play = Play::new(&[(SHOW, Ok(&ours)), (resume, Ok(""))]);
    assert!(matches!(play.act(&undrain), Outcome::Done(_)));
    for theirs in [
        "Reason=water [ann@2026-11-20T21:40:00]",
        "Reason=gpuos: GPU 4: Xid 48 [root@x]",
    ] {
        let theirs = node("IDLE+DRAIN", theirs);
        assert!(matches!(
            Play::new(&[(SHOW, Ok(&theirs))]).act(&undrain),
            Outcome::Nothing(_)
        ));
    }
    assert!(matches!(
        Play::new(&[(SHOW, Ok(&idle))]).act(&undrain),
        Outcome::Nothing(_)
    ));
}

/// Job 7 as Slurm prints it, with these fields.
fn job(state: &str, fields: &[(&str, &str)]) -> String {
    let state = [("JobState", state)];
    record("JobId=7 JobName=train", &[&state, fields].concat())
}

const QUEUE: &str = "squeue -a -t all -j 7";

const JOB: &str = "scontrol -d show job 7";

const REQUEUE: &str = "scontrol requeue incomplete 7";

#[test]
fn a_job_is_requeued_where_it_runs_and_released_once_it_waits() {
    let requeue = Action::Requeue { job: 7.into() };
    let again = job("COMPLETING", &[("Restarts", "1"), ("NodeList", "n[1-2]")]);
    for state in ["RUNNING", "SUSPENDED"] {
        let here = job(state, &[("NodeList", "n[1-2]")]);
        let play = Play::new(&[(QUEUE, Ok(&here)), (REQUEUE, Ok("")), (QUEUE, Ok(&again))]);
        assert!(matches!(play.act(&requeue), Outcome::Done(_)));
    }
    // It has moved on: where it runs now, nothing is wrong.
    let elsewhere = job("RUNNING", &[("NodeList", "n2")]);
    assert!(matches!(
        Play::new(&[(QUEUE, Ok(&elsewhere))]).act(&requeue),
        Outcome::Nothing(_)
    ));
    let here = job("RUNNING", &[("NodeList", "n[1-2]")]);
    let play = Play::new(&[
        (QUEUE, Ok(&here)),
        (
            REQUEUE,
            Err("Only batch jobs are accepted or processed for job 7\n"),
        ),
    ]);
    assert!(matches!(play.act(&requeue), Outcome::Refused(_)));

    let release = |avoid_node| Action::Release {
        job: 7.into(),
        avoid_node,
    };
    let completing = job("COMPLETING", &[("NodeList", "n1")]);
    assert!(matches!(
        Play::new(&[(QUEUE, Ok(&completing))]).act(&release(false)),
        Outcome::NotYet(_)
    ));
    let pending = job("PENDING", &[("NodeList", ""), ("ExcNodeList", "n8")]);
    let start = "scontrol update JobId=7 StartTime=now";
    let play = Play::new(&[(QUEUE, Ok(&pending)), (PAUSE, Ok("")), (start, Ok(""))]);
    assert!(matches!(play.act(&release(false)), Outcome::Done(_)));
    // After `--requeue=expedite`.
    let expediting = job("EXPEDITING", &[("NodeList", "")]);
    let play = Play::new(&[(QUEUE, Ok(&expediting)), (PAUSE, Ok("")), (start, Ok(""))]);
    assert!(matches!(play.act(&release(false)), Outcome::Done(_)));
    let avoid = "scontrol update JobId=7 StartTime=now ExcNodeList=n8,n1";
    let play = Play::new(&[
        (QUEUE, Ok(&pending)),
        (PAUSE, Ok("")),
        (JOB, Ok(&pending)),
        (avoid, Ok("")),
    ]);
    assert!(matches!(play.act(&release(true)), Outcome::Done(_)));
    let here_only = job("PENDING", &[("NodeList", ""), ("ReqNodeList", "n1")]);
    let play = Play::new(&[(QUEUE, Ok(&here_only))]);
    assert!(matches!(play.act(&release(true)), Outcome::NotYet(_)));
    let gone = "slurm_load_jobs error: Invalid job id specified\n";
    assert!(matches!(
        Play::new(&[(QUEUE, Err(gone))]).act(&release(true)),
        Outcome::Nothing(_)
    ));
}

#[test]
fn a_job_that_ended_between_the_look_and_the_requeue_is_not_said_to_be_requeued() {
    let here = job("RUNNING", &[("Restarts", "2"), ("NodeList", "n1")]);
    let cancelled = job("CANCELLED", &[("Restarts", "2"), ("NodeList", "n1")]);
    let play = Play::new(&[
        (QUEUE, Ok(&here)),
        (REQUEUE, Ok("")),
        (QUEUE, Ok(&cancelled)),
    ]);
    assert!(matches!(
        play.act(&Action::Requeue { job: 7.into() }),
        Outcome::Nothing(_)
    ));
}

/// Tasks of array 7 as `scontrol show job 7` prints them: the job whose number is the array's is one of them.
fn array(state: &str, restarts: &str) -> String {
    let task = |id: u32, task: u32| {
        let nodes = if state == "RUNNING" { "n1" } else { "" };
        record(
            &format!("JobId={id} ArrayJobId=7 ArrayTaskId={task} JobName=train"),
            &[
                ("JobState", state),
                ("Restarts", restarts),
                ("NodeList", nodes),
            ],
        )
    };
    [task(8, 0), task(9, 1), task(7, 2)].concat()
}

#[test]
fn of_an_array_one_task_is_hit_and_not_all_of_them() {
    let here = array("RUNNING", "0");
    let play = Play::new(&[
        (QUEUE, Ok(&here)),
        ("scontrol requeue incomplete 7_2", Ok("")),
        (QUEUE, Ok(&array("RUNNING", "1"))),
    ]);
    assert!(matches!(
        play.act(&Action::Requeue { job: 7.into() }),
        Outcome::Done(_)
    ));
    for (step, command) in [(None, "scancel 7_2"), (Some(1), "scancel 7_2.1")] {
        let play = Play::new(&[(QUEUE, Ok(&here)), (command, Ok(""))]);
        let kill = Action::Kill {
            job: 7.into(),
            step,
        };
        assert!(matches!(play.act(&kill), Outcome::Done(_)));
    }
    let release = Action::Release {
        job: 7.into(),
        avoid_node: false,
    };
    let play = Play::new(&[
        (QUEUE, Ok(&array("PENDING", "0"))),
        (PAUSE, Ok("")),
        ("scontrol update JobId=7_2 StartTime=now", Ok("")),
    ]);
    assert!(matches!(play.act(&release), Outcome::Done(_)));
    // Tasks that wait together have one number, which means all of them.
    let rest = record(
        "JobId=7 ArrayJobId=7 ArrayTaskId=4-9%2 ArrayTaskThrottle=2 JobName=train",
        &[("JobState", "PENDING"), ("NodeList", "")],
    );
    let play = Play::new(&[(QUEUE, Ok(&rest))]);
    assert!(matches!(play.act(&release), Outcome::Nothing(_)));
}

#[test]
fn a_component_is_requeued_with_its_heterogeneous_job() {
    let component = |restarts| {
        record(
            "JobId=8 HetJobId=7 HetJobOffset=1 JobName=train",
            &[("Restarts", restarts), ("NodeList", "n1")],
        )
    };
    let show = "squeue -a -t all -j 8";
    let play = Play::new(&[
        (show, Ok(&component("0"))),
        (REQUEUE, Ok("")),
        (show, Ok(&component("1"))),
    ]);
    assert!(matches!(
        play.act(&Action::Requeue { job: 8.into() }),
        Outcome::Done(_)
    ));
}

#[test]
fn of_a_component_a_step_is_killed_by_its_own_number_and_all_components_may_start() {
    let component = |state: &str| {
        record(
            "JobId=8 HetJobId=7 HetJobOffset=1 JobName=train",
            &[
                ("JobState", state),
                ("NodeList", if state == "PENDING" { "" } else { "n1" }),
                ("ExcNodeList", "n8"),
            ],
        )
    };
    let show = "squeue -a -t all -j 8";
    // `scancel 7+1.2` would kill step 2 of the first component.
    for (step, command) in [(None, "scancel 7+1"), (Some(2), "scancel 8.2")] {
        let play = Play::new(&[(show, Ok(&component("RUNNING"))), (command, Ok(""))]);
        let kill = Action::Kill {
            job: 8.into(),
            step,
        };
        assert!(matches!(play.act(&kill), Outcome::Done(_)), "{command}");
    }
    // None starts before all may.
    let waits = component("PENDING");
    let start = ("scontrol update JobId=7 StartTime=now", Ok(""));
    let release = |avoid_node| Action::Release {
        job: 8.into(),
        avoid_node,
    };
    let play = Play::new(&[(show, Ok(&waits)), (PAUSE, Ok("")), start]);
    assert!(matches!(play.act(&release(false)), Outcome::Done(_)));
    let play = Play::new(&[
        (show, Ok(&waits)),
        (PAUSE, Ok("")),
        ("scontrol -d show job 8", Ok(&waits)),
        ("scontrol update JobId=7+1 ExcNodeList=n8,n1", Ok("")),
        start,
    ]);
    assert!(matches!(play.act(&release(true)), Outcome::Done(_)));
}

#[test]
fn the_batch_script_is_the_job_and_a_job_that_left_is_not_ended_elsewhere() {
    let here = job("RUNNING", &[("NodeList", "n1")]);
    for (step, command) in [
        (Some(3), "scancel 7.3"),
        (Some(0xffff_fffb), "scancel 7"),
        (None, "scancel 7"),
    ] {
        let kill = Action::Kill {
            job: 7.into(),
            step,
        };
        assert!(matches!(
            Play::new(&[(QUEUE, Ok(&here)), (command, Ok(""))]).act(&kill),
            Outcome::Done(_)
        ));
        let elsewhere = job("RUNNING", &[("NodeList", "n2")]);
        assert!(matches!(
            Play::new(&[(QUEUE, Ok(&elsewhere))]).act(&kill),
            Outcome::Nothing(_)
        ));
    }
}

#[test]
fn jobs_of_a_node_are_asked_for_one_by_one() {
    let list = "squeue -a -w n1";
    let one = job("RUNNING", &[("NodeList", "n1")]);
    let both = one.clone() + &one.replace("JobId=7", "JobId=8");
    let gone = (
        "scontrol -d show job 8",
        Err("slurm_load_jobs error: Invalid job id specified\n"),
    );
    let play = Play::new(&[(list, Ok(&both)), (JOB, Ok(&one)), gone]);
    let jobs = jobs_on(&play, "n1").unwrap();
    assert_eq!(jobs.len(), 1);
    assert!(jobs[0].may_requeue && jobs[0].id == 7 && jobs[0].unreadable.is_empty());
    // scontrol would show all tasks of an array for the number of one.
    let task = record(
        "JobId=7 ArrayJobId=7 ArrayTaskId=2 JobName=train",
        &[("NodeList", "n1")],
    );
    let play = Play::new(&[(list, Ok(&task)), ("scontrol -d show job 7_2", Ok(&task))]);
    let jobs = jobs_on(&play, "n1").unwrap();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [7]);
    // An answer that says nothing is no node without jobs.
    struct Mute;
    impl Machine for Mute {
        fn run(&self, _: &str, _: &[&str]) -> Result<Output> {
            Ok(Output {
                ok: true,
                ..Output::default()
            })
        }
        fn run_within(&self, _: Duration, program: &str, args: &[&str]) -> Result<Output> {
            self.run(program, args)
        }
        fn run_with_env(
            &self,
            _: Duration,
            _: (&str, &str),
            program: &str,
            args: &[&str],
        ) -> Result<Output> {
            self.run(program, args)
        }
    }
    assert!(matches!(jobs_on(&Mute, "n1"), Err(Outcome::NoAnswer(_))));
}

const SILENT: &str =
    "NodeName=n3 State=MIXED\n   Reason=gpuos: silent: n1 did not hear n3 for 3.0 s [root@now]\n";

#[test]
fn a_silent_node_is_set_down_when_slurmctld_has_no_other_idea() {
    let own = ("scontrol show node n1", Ok("NodeName=n1 State=MIXED\n"));
    let running = job("RUNNING", &[("NodeList", "n[1-3]")]);
    let job_of = (QUEUE, Ok(&running[..]));
    let other = ("scontrol show node n3", Ok("NodeName=n3 State=MIXED\n"));
    let update = "scontrol update NodeName=n3 State=DOWN \
                  Reason=gpuos: silent: a, b, c and 2 others did not hear n3 for 3.1 s";
    let agreed = ["a", "b", "c", "d", "e"].map(String::from);
    let down = |lines: &[(&str, Result<&str, &str>)]| {
        let play = Play::new(lines);
        let silent = Silent {
            job: 7.into(),
            node: "n3".into(),
            silent_ms: 3120,
            agreed: agreed.to_vec(),
        };
        let outcome = set_down(&play, "n1", &silent);
        assert!(play.0.lock().unwrap().is_empty(), "{outcome:?}");
        outcome
    };
    let done = down(&[own, job_of, other, (update, Ok(""))]);
    assert!(matches!(done, Outcome::Done(_)), "{done:?}");
    // slurmctld itself does not hear it either, and would wait for minutes.
    for state in ["MIXED*", "ALLOCATED+NOT_RESPONDING", "MIXED+NO_RESPOND"] {
        let record = format!("NodeName=n3 State={state}\n");
        let done = down(&[own, job_of, (other.0, Ok(&record)), (update, Ok(""))]);
        assert!(matches!(done, Outcome::Done(_)), "{state}: {done:?}");
    }
    // It was DOWN before this node asked, and the job waits: it is to be let go.
    let requeued = job("PENDING", &[("Restarts", "1")]);
    let is_down = (other.0, Ok("NodeName=n3 State=DOWN*\n"));
    let done = down(&[own, (job_of.0, Ok(&requeued)), is_down]);
    assert!(matches!(done, Outcome::Done(_)), "{done:?}");
    // Whatever is not as it was: nothing is asked.
    let gone = job("RUNNING", &[("NodeList", "n[1-2]")]);
    for lines in [
        &[(own.0, Ok("NodeName=n1 State=DOWN*\n"))][..],
        &[own, (job_of.0, Ok(&gone))],
        &[own, (job_of.0, Err("Invalid job id specified"))],
        &[
            own,
            job_of,
            (other.0, Ok("NodeName=n3 State=MIXED+DRAIN\n")),
        ],
        &[
            own,
            job_of,
            (
                other.0,
                Ok("NodeName=n3 State=ALLOCATED+DRAIN+NOT_RESPONDING\n"),
            ),
        ],
        &[own, job_of, is_down],
        // Requeued by its user, while the node is up.
        &[own, (job_of.0, Ok(&requeued)), other],
    ] {
        let outcome = down(lines);
        assert!(matches!(outcome, Outcome::Nothing(_)), "{outcome:?}");
    }
    let away = "Unable to contact slurm controller (connect failure)";
    for lines in [
        &[(own.0, Err(away))][..],
        &[own, job_of, other, (update, Err(away))],
    ] {
        assert!(matches!(down(lines), Outcome::NoAnswer(_)));
    }
}

#[test]
fn only_who_was_set_down_as_silent_is_resumed() {
    let show = "scontrol show node n3";
    let down = SILENT.replace("MIXED", "DOWN*");
    let lines = [
        (show, Ok(&down[..])),
        ("scontrol update NodeName=n3 State=RESUME", Ok("")),
    ];
    assert!(matches!(resume(&Play::new(&lines), "n3"), Outcome::Done(_)));
    assert_eq!(
        is_set_down(&Play::new(&[(show, Ok(&down))]), "n3"),
        Ok(true)
    );
    let other = down.replace("gpuos: silent", "fan");
    for text in [&other[..], SILENT] {
        let play = Play::new(&[(show, Ok(text))]);
        assert!(matches!(resume(&play, "n3"), Outcome::Nothing(_)), "{text}");
    }
}

#[test]
fn a_step_that_is_gone_is_told_from_a_slurmctld_that_is_away() {
    let line = "scontrol --oneliner show step 17.3";
    let told = |answer| super::step_nodes(&Play::new(&[(line, answer)]), 17, 3);
    let record = "StepId=17.3 UserId=7 StartTime=1 TimeLimit=1 State=RUNNING Partition=p NodeList=n[1-2] Nodes=2 CPUs=2";
    assert_eq!(told(Ok(record)).unwrap().unwrap(), ["n1", "n2"]);
    assert_eq!(told(Err("Job step 17.3 not found")), Ok(None));
    assert_eq!(told(Ok("No job steps found")), Ok(None));
    assert!(told(Err("Unable to contact slurm controller")).is_err());
    assert!(told(Ok("StepId=17.3 NodeList=n1 Nodes=1")).is_err());
}
