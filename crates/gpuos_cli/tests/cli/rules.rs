//! What rules keep a job from: `gpuos why` and `gpuos plan` name them, and promise no start that one
//! of them forbids.

use serde_json::Value;

use crate::site::Site;

/// The recorded cluster, with n4 in service; the jobs that run have no account and hold n1 to n3.
fn site(rules: &str) -> Site {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site.file("gpuos.toml", rules);
    site
}

/// Changes what is shown of one job.
fn edit(site: &Site, job: u32, from: &str, to: &str) {
    let text = std::fs::read_to_string(site.path("jobs.txt")).unwrap();
    let mark = format!("JobId={job} ");
    let mut found = false;
    let blocks = text.split("\n\n").map(|block| {
        let mine = block.starts_with(&mark) && block.contains(from);
        found |= mine;
        if mine {
            block.replace(from, to)
        } else {
            block.into()
        }
    });
    let blocks: Vec<String> = blocks.collect();
    assert!(found, "job {job} has no {from}");
    site.file("jobs.txt", &blocks.join("\n\n"));
}

/// A waiting job asks for so many GPUs on each node.
fn gpus(site: &Site, job: u32, gpus: &str, nodes: &str) {
    let wanted = format!("TresPerNode=gres/gpu:{gpus}");
    edit(site, job, "TresPerJob=gres/gpu:1", &wanted);
    edit(site, job, "NumNodes=1 ", nodes);
}

fn why(site: &Site, job: &str) -> (String, Value) {
    let text = site.run(&["why", job]).out;
    let json = site.run(&["why", job, "--json"]).json();
    (text, json["jobs"][0].clone())
}

/// Options of the changes, the smallest first.
fn options(job: &Value) -> Vec<&str> {
    let changes = job["changes"].as_array().unwrap();
    changes
        .iter()
        .map(|change| change["option"].as_str().unwrap())
        .collect()
}

#[test]
fn a_rule_that_is_the_smallest_change_is_named_and_its_end_foreseen() {
    let site = site("[[rule]]\ntenants = \"account\"\nlevel = \"leaf\"\n");
    edit(&site, 12, "Account=(null)", "Account=physics");
    let (text, job) = why(&site, "12");
    assert!(
        text.starts_with("Job 12 waits: ") && text.contains("(rule 1)"),
        "{text}"
    );
    assert_eq!(job["cause"], "rules");
    assert_eq!(options(&job), ["no rule 1 in gpuos.toml"]);
    assert_eq!(job["changes"][0]["by"], "administrator");
    assert!(text.contains("for the administrator: no rule 1"), "{text}");
    // n4 is idle all the time; who is in its leaf has to end.
    assert_eq!(job["forecast"]["at"], "2026-11-20T21:07:40");
    assert_eq!(job["forecast"]["jobs"], serde_json::json!(["6"]));
    let plan = ["plan", "--gpus=1", "-A", "physics", "-p", "main"];
    let plan = site.run(&plan);
    assert!(
        plan.out
            .contains("With no rule 1 in gpuos.toml it would start now")
            && plan.out.contains("at 2026-11-20T21:07:40 at the latest"),
        "{}{}",
        plan.out,
        plan.err
    );
}

#[test]
fn a_place_for_itself_may_be_asked_for_more_narrowly() {
    let site = site("");
    site.file("script", "#!/bin/sh\n#SBATCH --gpuos-exclusive=leaf\n");
    let (text, job) = why(&site, "12");
    assert_eq!(
        options(&job),
        ["--gpuos-exclusive=node", "no --gpuos-exclusive"],
        "{text}"
    );
    assert_eq!(job["changes"][0]["place"]["nodes"][0]["node"], "n4");
    assert_eq!(job["forecast"]["at"], "2026-11-20T21:07:40", "{text}");
    site.edit("nodes.txt", "NodeName=n4 ", "NodeName=n4  State=DOWN ");
    site.edit("nodes.txt", "State=IDLE ", "State=IDLE+DRAIN ");
    let (text, job) = why(&site, "12");
    assert_eq!(options(&job), ["no --gpuos-exclusive"], "{text}");
}

#[test]
fn what_a_hard_reserve_keeps_is_not_promised() {
    let site = site("[[reserve]]\nnodes = 1\ngangs = 2\nhard = true\n");
    // One node of eight GPUs: it is there, for gangs. Two of four are a gang, one of four is none.
    gpus(&site, 12, "8", "NumNodes=1 ");
    gpus(&site, 13, "4", "NumNodes=2-2 ");
    edit(&site, 13, "node=1,billing", "node=2,billing");
    let (text, job) = why(&site, "12");
    assert_eq!(
        options(&job),
        ["no reserve 1 in gpuos.toml", "--gpus-per-node=1"],
        "{text}"
    );
    assert!(
        text.contains("Smallest that the job itself can ask for: --gpus-per-node=1"),
        "{text}"
    );
    let (text, job) = why(&site, "13");
    assert_eq!(options(&job), ["--gpus-per-node=1"], "{text}");
    // n2 is empty before n3, and is then the one that is kept; it goes to n1.
    let site = Site::new("24.11.5");
    site.file(
        "gpuos.toml",
        "[[reserve]]\nnodes = 1\ngangs = 2\nhard = true\n",
    );
    edit(
        &site,
        6,
        "EndTime=2026-11-20T21:07:40",
        "EndTime=2026-11-20T23:00:00",
    );
    gpus(&site, 12, "8", "NumNodes=1 ");
    let (text, job) = why(&site, "12");
    assert_eq!(job["forecast"]["place"]["nodes"][0]["node"], "n1", "{text}");
    assert_eq!(job["forecast"]["at"], "2026-11-20T21:47:40", "{text}");
}

#[test]
fn a_shorter_time_or_no_class_may_be_enough() {
    let short = site("[[reserve]]\nnodes = 1\ngangs = 2\nhard = true\nunless-shorter = \"20m\"\n");
    gpus(&short, 12, "8", "NumNodes=1 ");
    let (text, job) = why(&short, "12");
    assert_eq!(options(&job)[0], "--time=19", "{text}");
    let class = Site::new("24.11.5");
    class.file(
        "gpuos.toml",
        "[[class]]\nname = \"noisy\"\n[[class]]\nname = \"training\"\nuser = \"root\"\n\
         [[rule]]\nnever-beside = [\"noisy\", \"training\"]\n",
    );
    class.file("script", "#!/bin/sh\n#SBATCH --gpuos-class=noisy\n");
    let (text, job) = why(&class, "12");
    assert_eq!(
        options(&job),
        ["no --gpuos-class", "no rule 1 in gpuos.toml"],
        "{text}"
    );
}

/// Whatever the rules: a start that is promised is one under them.
#[test]
fn every_promise_holds_when_it_is_asked_for() {
    let rules = [
        "[[reserve]]\nnodes = 2\ngangs = 2\nhard = true\n",
        "[[rule]]\ntenants = \"account\"\nlevel = \"node\"\n",
        "[[rule]]\ntenants = \"user\"\nlevel = \"leaf\"\n[[reserve]]\nnodes = 1\ngangs = 3\nhard = true\n",
    ];
    let asks: [&[&str]; 4] = [
        &["--gpus-per-node=8", "--nodes=2"],
        &["--gpus-per-node=4", "--nodes=3"],
        &["--gpus=12", "--nodes=1"],
        &["--gpus-per-node=2", "--nodes=2", "--alone=node"],
    ];
    let mut promises = 0;
    for rule in rules {
        let site = site(rule);
        for ask in asks {
            let first = ["plan", "-A", "physics", "-p", "main"];
            let told = site.run(&[&first[..], ask, &["--json"]].concat()).json();
            for change in told["changes"].as_array().into_iter().flatten() {
                let option = change["option"].as_str().unwrap();
                if change["by"] != "user" || !option.starts_with("--") {
                    continue;
                }
                let (name, _) = option.split_once('=').unwrap();
                let rest = ask.iter().filter(|word| !word.starts_with(name));
                let rest: Vec<&str> = rest.copied().chain([option]).collect();
                let again = site.run(&[&first[..], &rest, &["--json"]].concat()).json();
                assert_eq!(again["fits"], true, "{rule}{ask:?} with {option}: {again}");
                promises += 1;
            }
        }
    }
    assert!(promises >= 6, "{promises}");
}
