//! LSF and Torque, by exchanges that were written after their public documentation.

use gpuos_wlm::batch::{
    folder_of, is_first_task, of_gpufile, of_visible, saves_here, wish, wish_of_script,
};
use proptest::prelude::*;

#[test]
fn a_wish_is_read_as_sbatch_reads_it() {
    assert_eq!(wish("").unwrap().topology, None);
    assert!(wish("nvlink:required").unwrap().topology.unwrap().required);
    let why = wish("nvlink:maybe").unwrap_err();
    assert!(
        why.starts_with("GPUOS_TOPOLOGY=nvlink:maybe: 'maybe' is not understood"),
        "{why}"
    );
    assert!(wish("leaf").unwrap_err().contains("no level 'leaf'"));
}

#[test]
fn scripts_of_torque_say_it_where_qsub_reads() {
    let none: [String; 0] = [];
    let script = "#!/bin/sh\n#PBS -l nodes=1:gpus=2\n#PBS -v A=1,GPUOS_TOPOLOGY=nvlink:required\n\ntrain\n#PBS -v GPUOS_TOPOLOGY=node\n";
    assert_eq!(wish_of_script(script, &none), "nvlink:required");
    for flags in [
        vec!["-l", "x", "-v", "B=2,GPUOS_TOPOLOGY=any"],
        vec!["-vGPUOS_TOPOLOGY=any"],
    ] {
        let flags: Vec<String> = flags.into_iter().map(String::from).collect();
        assert_eq!(wish_of_script(script, &flags), "any");
    }
    assert_eq!(wish_of_script("train\n", &none), "");
    assert_eq!(
        wish_of_script("#PBS -v \"GPUOS_TOPOLOGY=node\"\n", &none),
        "node"
    );
}

#[test]
fn gpus_are_those_that_were_given_here() {
    let file = "n1-gpu0\nn1.site-gpu3\nn2-gpu1\nn1-gpux\nn1\n";
    assert_eq!(of_gpufile(file, "N1.example.org"), ["0", "3"]);
    assert_eq!(of_gpufile("gpu-node-gpu7\n", "gpu-node"), ["7"]);
    assert_eq!(of_visible("GPU-a, 1,"), ["GPU-a", "1"]);
    assert!(of_visible("").is_empty());
}

#[test]
fn a_job_saves_where_its_manager_says() {
    for (methods, here) in [
        ("", true),
        ("gpuos", true),
        ("fluent gpuos", true),
        ("criu", false),
        ("gpuos2", false),
    ] {
        assert_eq!(saves_here(methods), here, "{methods}");
    }
    for job in ["17.head", "17[3].head-a.example.org", "17"] {
        assert_eq!(folder_of(job), Some(job));
    }
    for no in [
        "", ".", "..", "head.17", "17/..", "../17", "17 x", "17\n", "17é",
    ] {
        assert_eq!(folder_of(no), None, "{no}");
    }
    assert_eq!(folder_of(&"1".repeat(201)), None);
    let first = [("", ""), ("0", "1"), ("0", "")];
    let later = [("1", "1"), ("0", "2"), ("x", "1")];
    assert!(first.iter().all(|(node, task)| is_first_task(node, task)));
    assert!(!later.iter().any(|(node, task)| is_first_task(node, task)));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*", more in prop::collection::vec("\\PC{0,20}", 0..5)) {
        let _ = saves_here(&text);
        prop_assert!(folder_of(&text).is_none_or(|name| !name.contains('/') && !name.starts_with('.')));
        let _ = (wish(&text), of_gpufile(&text, "n1"), of_visible(&text), wish_of_script(&text, &more));
    }
}
