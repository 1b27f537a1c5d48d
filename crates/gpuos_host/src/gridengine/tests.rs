use anyhow::Result;

use super::*;
use crate::{Output, Recorded};

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

/// Job 7 of ann's, whose only task runs since then; 0: it waits.
fn qstat(since: u32, context: &str) -> String {
    let status = if since == 0 { 0 } else { 128 };
    format!(
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://x\"><djob_info><element><JB_job_number>7</JB_job_number>\
         <JB_owner>ann</JB_owner><JB_uid>1000</JB_uid><JB_gid>1001</JB_gid><JB_ja_tasks><ulong_sublist><JAT_status>{status}</JAT_status>\
         <JAT_task_number>1</JAT_task_number><JAT_start_time>{since}</JAT_start_time></ulong_sublist></JB_ja_tasks>{context}\
         <JB_checkpoint_name>gpuos</JB_checkpoint_name><JB_restart>0</JB_restart></element></djob_info></detailed_job_info>\n"
    )
}

const GONE: &str =
    "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>7</ST_name>\n</unknown_jobs>\n";

fn runs_on(host: &str) -> String {
    format!(
        "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://x\"><queue_info><job_list state=\"running\"><JB_job_number>7</JB_job_number>\
         <JB_name>x%lt;queue_name&gt;gpu.q@n9</JB_name><JB_owner>ann</JB_owner><state>r</state><queue_name>gpu.q@{host}</queue_name>\
         <slots>1</slots></job_list></queue_info><job_info></job_info></job_info>\n"
    )
}

fn machine(of_job: &str, of_user: &str) -> Recorded {
    Recorded::default()
        .command("qstat -xml -j 7", of_job)
        .command("qstat -xml -s rs -u ann", of_user)
        .command("qconf -sel", "n1.example.org\nn2\n")
}

fn host(of_job: &str, of_user: &str) -> Execd {
    Execd::new("n1", Arc::new(machine(of_job, of_user)))
}

fn told(execd: &Execd, since: u64, hosts: &str) {
    let job = MomJob {
        job: id("7.1"),
        user: "ann".into(),
        uid: 1000,
        run: since,
        hosts: hosts.into(),
        checkpoints: true,
        ..MomJob::default()
    };
    let report = MomReport {
        jobs: vec![job],
        ..MomReport::default()
    };
    execd.told(&report).expect("it is told");
}

/// Lets what was told be so old that sge_qmaster is asked.
fn age(execd: &Execd) {
    for held in execd.lock().here.values_mut() {
        held.seen = Instant::now().checked_sub(LOOK).expect("a time");
    }
}

#[test]
fn a_job_is_here_from_its_prolog_to_its_epilog() {
    // sge_qmaster is not asked while it holds.
    let execd = Execd::new("n1", Arc::new(Recorded::default()));
    assert!(execd.job(&id("7.1")).is_err());
    told(&execd, 500, "n1");
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!(
        (record.restarts, record.uid, record.state),
        (500, 1000, JobState::Running)
    );
    assert_eq!(record.nodes, ["n1"]);
    // While it does not answer the job is as it was.
    age(&execd);
    assert!(execd.job(&id("7.1")).unwrap().is_some());
    told(&execd, 0, "");
    assert!(execd.job(&id("7.1")).is_err());
}

#[test]
fn an_epilog_that_did_not_run_is_noticed() {
    for (answer, is_known) in [(qstat(0, ""), true), (GONE.into(), false)] {
        let execd = host(&answer, "");
        told(&execd, 500, "n1");
        assert!(
            execd
                .job(&id("7.1"))
                .unwrap()
                .is_some_and(|job| job.is_running())
        );
        age(&execd);
        let record = execd.job(&id("7.1")).unwrap();
        assert_eq!(record.is_some(), is_known);
        assert!(record.is_none_or(|job| job.state == JobState::Waiting && job.nodes.is_empty()));
        assert_eq!(execd.jobs().unwrap(), []);
    }
}

#[test]
fn a_job_that_has_ended_here_is_not_here_while_qmaster_still_says_so() {
    let execd = host(&qstat(500, ""), &runs_on("n1.example.org"));
    // As after a start of gpuos_mover: nobody has told of it.
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!(
        (record.restarts, &record.nodes[..]),
        (500, &["n1".to_string()][..])
    );
    told(&execd, 0, "");
    let record = execd.job(&id("7.1")).unwrap().expect("it ends");
    assert_eq!((record.state, record.nodes.len()), (JobState::Ending, 0));
    // Its next run on this host is another one.
    told(&execd, 501, "n1");
    assert_eq!(
        execd.job(&id("7.1")).unwrap().expect("it is here").restarts,
        501
    );
}

/// While sge_qmaster is asked, `tells` is done; then it answers as it would have before.
struct Slow {
    answers: Recorded,
    execd: Mutex<Option<Arc<Execd>>>,
    tells: fn(&Execd),
}

impl Slow {
    fn tell(&self) {
        if let Some(execd) = self.execd.lock().expect("a test").take() {
            (self.tells)(&execd);
        }
    }
}

impl Machine for Slow {
    fn run(&self, program: &str, args: &[&str]) -> Result<Output> {
        self.tell();
        self.answers.run(program, args)
    }

    fn run_within(&self, limit: Duration, program: &str, args: &[&str]) -> Result<Output> {
        self.tell();
        self.answers.run_within(limit, program, args)
    }

    fn run_with_env(
        &self,
        limit: Duration,
        variable: (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        self.tell();
        self.answers.run_with_env(limit, variable, program, args)
    }
}

/// An exec host of which something is told while sge_qmaster answers, and what it says then.
fn meanwhile(
    answers: Recorded,
    before: fn(&Execd),
    tells: fn(&Execd),
) -> (Arc<Execd>, Option<Job>) {
    let slow = Arc::new(Slow {
        answers,
        execd: Mutex::default(),
        tells,
    });
    let execd = Arc::new(Execd::new("n1", slow.clone()));
    before(&execd);
    age(&execd);
    *slow.execd.lock().expect("a test") = Some(Arc::clone(&execd));
    let record = execd.job(&id("7.1")).expect("an answer");
    (execd, record)
}

/// A question may be on its way while a prolog or an epilog tells: what it brings is older than that.
#[test]
fn an_answer_that_is_older_than_the_last_word_changes_nothing() {
    let nowhere = || machine(&qstat(0, ""), "");
    let here = || machine(&qstat(500, ""), &runs_on("n1.example.org"));
    let gone = || machine(GONE, "");
    // It waited still when it was asked for, and begins.
    for answers in [nowhere(), gone(), here()] {
        let (execd, record) = meanwhile(answers, |_| (), |execd| told(execd, 501, "n1"));
        let record = record.expect("it is here");
        assert_eq!((record.restarts, record.state), (501, JobState::Running));
        assert_eq!(execd.jobs().unwrap(), [record]);
    }
    // It ran still, and has ended.
    let ran = |execd: &Execd| told(execd, 500, "n1");
    let (execd, record) = meanwhile(here(), ran, |execd| told(execd, 500, ""));
    assert_eq!(record.expect("it ends").state, JobState::Ending);
    assert_eq!(execd.jobs().unwrap(), []);
    // It waited still, has run and ended: that sge_qmaster may have it here for a moment longer is known.
    let (execd, record) = meanwhile(
        nowhere(),
        |_| (),
        |execd| {
            told(execd, 500, "n1");
            told(execd, 500, "");
        },
    );
    assert_eq!(record.expect("it waits").state, JobState::Waiting);
    assert!(execd.lock().ended.contains_key(&id("7.1")));
    // Without an answer it is not here either, once its epilog has said so.
    let slow = Arc::new(Slow {
        answers: Recorded::default(),
        execd: Mutex::default(),
        tells: |execd| told(execd, 500, ""),
    });
    let execd = Arc::new(Execd::new("n1", slow.clone()));
    told(&execd, 500, "n1");
    age(&execd);
    *slow.execd.lock().expect("a test") = Some(Arc::clone(&execd));
    assert!(execd.job(&id("7.1")).is_err());
}

#[test]
fn an_epilog_ends_the_run_that_it_is_of() {
    let execd = host(&qstat(501, ""), &runs_on("n1.example.org"));
    told(&execd, 501, "n1");
    // Of the run before, which is late.
    told(&execd, 500, "");
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!((record.restarts, record.state), (501, JobState::Running));
    told(&execd, 501, "");
    assert_eq!(execd.jobs().unwrap(), []);
    let record = execd.job(&id("7.1")).unwrap().expect("it ends");
    assert_eq!(record.state, JobState::Ending);
    // As after a start of gpuos_mover: of the run nobody has told but its epilog.
    let execd = host(&qstat(501, ""), &runs_on("n1.example.org"));
    told(&execd, 501, "");
    let record = execd.job(&id("7.1")).unwrap().expect("it ends");
    assert_eq!(record.state, JobState::Ending);
    // And of a later one than that nobody has told here.
    let execd = host(&qstat(502, ""), &runs_on("n1.example.org"));
    told(&execd, 500, "n1");
    told(&execd, 501, "");
    assert_eq!(execd.jobs().unwrap(), []);
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!((record.restarts, record.state), (502, JobState::Running));
}

#[test]
fn another_host_is_asked_for_what_it_keeps_where_the_job_was() {
    let entry =
        |name: &str| format!("<context_list><VA_variable>{name}</VA_variable></context_list>");
    let names = [
        "gpuos_at_n2",
        "gpuos_at_evil.example.org",
        "gpuos_at_n3",
        "gpuos_at_-x",
        "gpuos_at_",
        "n1",
    ];
    let context = format!("<JB_context>{}</JB_context>", names.map(entry).concat());
    let execd = host(&qstat(500, &context), &runs_on("n2"));
    let record = execd.job_anywhere(&id("7.1")).unwrap().expect("it runs");
    assert_eq!(record.nodes, ["n2"]);
    let holders = execd.holders(&id("7.1")).unwrap();
    // What is no exec host was written by the job's user.
    assert_eq!(
        holders
            .nodes
            .iter()
            .map(|one| &one.node[..])
            .collect::<Vec<_>>(),
        ["n2"]
    );
    for other in ["7", "7.0", "07.1", "x", "7.1.1"] {
        assert!(execd.job(&id(other)).is_err(), "{other}");
    }
}

#[test]
fn hosts_are_remembered_by_names_alone() {
    let machine =
        machine("", "").command("qalter -ac gpuos_at_n1 7", "modified context of job 7\n");
    assert_eq!(remember(&machine, &id("7.1"), "n1"), Ok(()));
    for bad in ["", "-n1", "n1,x=y", "n1=2", "N1", "a.b"] {
        assert!(remember(&machine, &id("7.1"), bad).is_err(), "{bad}");
    }
}
