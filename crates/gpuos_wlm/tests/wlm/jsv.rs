//! The protocol of Grid Engine's verifier, as sge_qmaster 8.1.9 spoke it.

use gpuos_wlm::gridengine::jsv::{Jsv, Step};
use proptest::prelude::*;

/// What sge_qmaster wrote for a job with an argument of two lines.
const RECORDED: &str = include_str!("jsv-recorded.txt");

/// What is said of a job with these parameters.
fn said(parameters: &[&str]) -> Vec<String> {
    let mut jsv = Jsv::default();
    assert_eq!(jsv.line("START"), Step::Say(vec!["STARTED".into()]));
    for line in parameters {
        assert_eq!(jsv.line(&format!("PARAM {line}")), Step::Wait);
    }
    match jsv.line("BEGIN") {
        Step::Complete(said) => said,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wish_becomes_what_grid_engine_counts_and_keeps() {
    let mut jsv = Jsv::default();
    let steps: Vec<Step> = RECORDED.lines().map(|line| jsv.line(line)).collect();
    let spoken: Vec<&Step> = steps.iter().filter(|step| **step != Step::Wait).collect();
    let answer = [
        "PARAM l_hard gpu=2,gpuos_nvlink=2",
        "PARAM ac k<x=v<y,gpuos_topology=nvlink:required",
        "RESULT STATE CORRECT",
    ];
    let answer = Step::Complete(answer.map(String::from).to_vec());
    assert_eq!(spoken, [&Step::Say(vec!["STARTED".into()]), &answer]);
    // A wish that is no must is not counted.
    let preferred = [
        "PARAM l_hard gpu=2",
        "PARAM ac gpuos_topology=nvlink",
        "RESULT STATE CORRECT",
    ];
    assert_eq!(said(&["l_hard gpu=2,gpuos_topology=nvlink"]), preferred);
    assert_eq!(said(&["l_hard gpu=2,h_rt=60"]), ["RESULT STATE ACCEPT"]);
    assert_eq!(said(&[]), ["RESULT STATE ACCEPT"]);
    // A host of a kind, by what it reports.
    let kind = [
        "PARAM l_hard gpu=2,gpuos_topo=dgx-h100",
        "RESULT STATE CORRECT",
    ];
    assert_eq!(said(&["l_hard gpu=2,gpuos_topo=dgx-h100"]), kind);
    assert_eq!(
        said(&["l_hard gpu=2,gpuos_topology=off"]),
        ["PARAM l_hard gpu=2", "RESULT STATE CORRECT"]
    );
    // What is in the context already is not what counts beside -l.
    assert_eq!(
        said(&["l_hard gpu=2,gpuos_topology=off", "ac gpuos_topology=rack"]),
        [
            "PARAM l_hard gpu=2",
            "PARAM ac gpuos_topology=off",
            "RESULT STATE CORRECT"
        ]
    );
}

#[test]
fn what_nobody_would_do_is_refused_with_a_sentence() {
    for (parameters, words) in [
        (
            "l_hard gpu=2,gpuos_topology=rack",
            "-l gpuos_topology=rack: a job on one host has no level 'rack'; write one of nvlink, node, any",
        ),
        (
            "l_hard gpuos_topology=nvlink",
            "-l gpuos_topology=nvlink: the job asks for no GPU",
        ),
        (
            "l_hard gpu=2,gpuos_mig=1g.10gb",
            "-l gpuos_mig=1g.10gb: gpuos has no such option with this workload manager",
        ),
        (
            "l_hard gpu=100,gpuos_topology=node",
            "no host has so many GPUs; write at most 64",
        ),
        ("ac gpuos_topology=nvlink:soon", "'soon' is not understood"),
        (
            "l_hard gpu=1,gpuos_topology=a\u{1b}[2Jb",
            "RESULT STATE REJECT",
        ),
    ] {
        let said = said(&[parameters]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("RESULT STATE REJECT ") && said[0].contains(words),
            "{said:?}"
        );
        assert!(said[0].chars().all(|c| !c.is_control()), "{said:?}");
    }
}

#[test]
fn an_interval_of_checkpoints_goes_into_the_context() {
    let both = said(&[
        "ckpt gpuos",
        "l_hard gpu=2,gpuos_checkpoint=10m+l3=every:2,gpuos_topology=nvlink",
    ]);
    assert_eq!(
        both,
        [
            "PARAM l_hard gpu=2",
            "PARAM ac gpuos_topology=nvlink,gpuos_checkpoint=10m+l3=every:2",
            "RESULT STATE CORRECT"
        ]
    );
    // Hosts are remembered by root alone, as far as the submission goes.
    let forged = said(&[
        "ckpt gpuos",
        "l_hard gpuos_checkpoint=90s",
        "ac gpuos_at_n2,k=v",
    ]);
    assert_eq!(
        forged,
        [
            "PARAM l_hard",
            "PARAM ac k=v,gpuos_topology=off,gpuos_checkpoint=90s",
            "RESULT STATE CORRECT"
        ]
    );
    let off = said(&["l_hard gpuos_checkpoint=off", "ac gpuos_checkpoint=soon"]);
    assert_eq!(
        off,
        [
            "PARAM l_hard",
            "PARAM ac gpuos_topology=off,gpuos_checkpoint=off",
            "RESULT STATE CORRECT"
        ]
    );
    for (parameters, words) in [
        (
            &["l_hard gpuos_checkpoint=10m"][..],
            "-l gpuos_checkpoint=10m: the job has no checkpointing environment of gpuos; write -ckpt gpuos with it",
        ),
        (
            &["l_hard gpuos_checkpoint=10m", "ckpt berkeley"],
            "write -ckpt gpuos with it",
        ),
        (
            &["ckpt gpuos", "l_hard gpuos_checkpoint=soon"],
            "-l gpuos_checkpoint=soon",
        ),
        (
            &["ckpt gpuos", "ac gpuos_checkpoint=soon"],
            "-l gpuos_checkpoint=soon",
        ),
        (
            &["ckpt gpuos", "l_hard gpuos_checkpoint=10m+l0=1G"],
            "no folder in memory is made for jobs of Grid Engine",
        ),
        (
            &["ckpt gpuos", "l_hard gpuos_checkpoint=10m+restart=7"],
            "goes on from its own checkpoints alone",
        ),
    ] {
        let said = said(parameters);
        let refused = said.len() == 1 && said[0].starts_with("RESULT STATE REJECT ");
        assert!(refused && said[0].contains(words), "{said:?}");
    }
}

#[test]
fn lines_between_two_jobs_end_it() {
    let mut jsv = Jsv::default();
    jsv.line("START");
    jsv.line("PARAM CMDARG0 x");
    assert!(matches!(jsv.line("BEGIN"), Step::Complete(_)));
    // What comes of an argument with a line break after a BEGIN of a user's.
    assert_eq!(jsv.line("PARAM l_hard gpu=8"), Step::End);
    assert_eq!(Jsv::default().line("BEGIN"), Step::End);
    let mut jsv = Jsv::default();
    jsv.line("START");
    assert_eq!(jsv.line("QUIT"), Step::End);
}

proptest! {
    #[test]
    fn no_line_makes_more_than_lines(lines in prop::collection::vec("(PARAM (l_hard|ac|N|x) )?[\\PC\n]{0,40}", 0..20)) {
        let mut jsv = Jsv::default();
        jsv.line("START");
        for line in lines {
            if let Step::Say(said) | Step::Complete(said) = jsv.line(&line) {
                for one in said {
                    let reject = one.starts_with("RESULT STATE REJECT");
                    prop_assert!(!reject || !one.contains('\n'), "{one:?}");
                }
            }
        }
    }
}
