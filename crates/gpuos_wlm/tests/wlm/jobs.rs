//! Jobs of Grid Engine, by what `qstat -xml -j` of 8.1.9 printed of them.

use gpuos_wlm::gridengine::job::{Job, MOST_BYTES};
use proptest::prelude::*;

/// What was printed of a job whose user tried to write XML into all that he could.
const HOSTILE: &str = include_str!("qstat-hostile.xml");

fn record(inside: &str) -> String {
    format!(
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://x\">\n<djob_info>\n<element>\n\
         <JB_job_number>7</JB_job_number>\n<JB_uid>1001</JB_uid>\n{inside}</element>\n</djob_info>\n</detailed_job_info>\n"
    )
}

fn resource(name: &str, value: &str, consumable: &str) -> String {
    format!(
        "<qstat_l_requests><CE_name>{name}</CE_name><CE_stringval>x</CE_stringval><CE_doubleval>{value}</CE_doubleval>\
         <CE_consumable>{consumable}</CE_consumable></qstat_l_requests>"
    )
}

fn with_gpus(value: &str, consumable: &str) -> String {
    let hard = resource("gpu", value, consumable);
    record(&format!(
        "<JB_hard_resource_list>{hard}</JB_hard_resource_list>"
    ))
}

#[test]
fn what_a_user_wrote_is_no_part_of_the_record() {
    let job = Job::read(HOSTILE, "3").unwrap();
    assert_eq!((job.uid, job.ask.gpus), (58_101, 2));
    let wish = job.ask.topology.expect("a wish");
    assert_eq!(wish.to_string(), "nvlink:required");
    let why = Job::read(HOSTILE, "4").unwrap_err();
    assert!(why.contains("another job than 4"), "{why}");
}

#[test]
fn gpus_are_counted_once_for_each_job() {
    assert_eq!(Job::read(&record(""), "7").unwrap().ask.gpus, 0);
    assert_eq!(
        Job::read(&with_gpus("3.000000", "2"), "7")
            .unwrap()
            .ask
            .gpus,
        3
    );
    let why = Job::read(&with_gpus("3.000000", "1"), "7").unwrap_err();
    assert!(why.contains("gives it JOB as consumable"), "{why}");
    for bad in ["", "x", "-1.0", "1.5", "99999999999", "65.0"] {
        assert!(Job::read(&with_gpus(bad, "2"), "7").is_err(), "{bad}");
    }
    let twice = resource("gpu", "1.0", "2") + &resource("gpu", "2.0", "2");
    let twice = record(&format!(
        "<JB_hard_resource_list>{twice}</JB_hard_resource_list>"
    ));
    assert!(Job::read(&twice, "7").unwrap_err().contains("twice"));
    // Nowhere but in its place.
    let elsewhere = record(&format!(
        "<JB_env_list>{}</JB_env_list>",
        resource("gpu", "8.0", "2")
    ));
    assert_eq!(Job::read(&elsewhere, "7").unwrap().ask.gpus, 0);
    let deeper = resource("gpu", "8.0", "2");
    let deeper = record(&format!(
        "<x><JB_hard_resource_list>{deeper}</JB_hard_resource_list></x>"
    ));
    assert_eq!(Job::read(&deeper, "7").unwrap().ask.gpus, 0);
}

#[test]
fn what_is_no_record_of_the_job_is_refused() {
    let whole = with_gpus("2.0", "2");
    for cut in (0..whole.len() - 1).step_by(7) {
        assert!(Job::read(&whole[..cut], "7").is_err(), "{}", &whole[..cut]);
    }
    let two = record("<JB_uid>0</JB_uid>");
    assert!(
        Job::read(&two, "7")
            .unwrap_err()
            .contains("no single JB_uid")
    );
    assert!(Job::read(&"<a>".repeat(40), "7").is_err());
    assert!(Job::read(&" ".repeat(MOST_BYTES + 1), "7").is_err());
}

#[test]
fn a_wish_that_is_none_is_the_jobs_fault() {
    let wish = |value: &str| {
        let hard = resource("gpu", "2.0", "2");
        record(&format!(
            "<JB_hard_resource_list>{hard}</JB_hard_resource_list><JB_context><context_list><VA_variable>other</VA_variable>\
             </context_list><context_list><VA_variable>gpuos_topology</VA_variable><VA_value>{value}</VA_value></context_list></JB_context>"
        ))
    };
    assert!(
        Job::read(&wish("node"), "7")
            .unwrap()
            .ask
            .topology
            .is_some()
    );
    assert!(Job::read(&wish("off"), "7").unwrap().ask.topology.is_none());
    let why = Job::read(&wish("leaf"), "7").unwrap_err();
    assert_eq!(
        why,
        "-l gpuos_topology=leaf: a job on one host has no level 'leaf'; write one of nvlink, node, any"
    );
    let why = Job::read(&wish("nvlink:perhaps"), "7").unwrap_err();
    assert!(
        why.starts_with(
            "-l gpuos_topology=nvlink:perhaps: 'perhaps' is not understood; write LEVEL"
        ),
        "{why}"
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[<>/a-z&; \n]{0,200}") {
        let _ = Job::read(&text, "7");
        let _ = Job::read(&record(&text), "7");
    }

    /// As Grid Engine escapes it, nothing in a value changes what is read.
    #[test]
    fn values_do_not_matter(value in "[^<]{0,80}") {
        let inside = format!("<JB_job_name>{value}</JB_job_name>");
        prop_assert_eq!(Job::read(&record(&inside), "7").unwrap().ask.gpus, 0);
    }
}
