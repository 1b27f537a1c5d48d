//! Damaged answers: whatever Slurm's commands print, the parsers come back.

use gpuos_config::options::JobOptions;
use gpuos_host::slurm::site::{JobRequest, Site, options_in_script};
use gpuos_host::slurm::{Job, NodeRecord, Running};
use gpuos_host::{Recorded, elf};
use proptest::prelude::*;

fn captured(what: &str) -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    std::fs::read_to_string(format!("{dir}/24.11.5-{what}.txt")).unwrap()
}

/// A captured text with some places overwritten.
fn damaged(what: &'static str) -> impl Strategy<Value = String> {
    let words = prop_oneof![
        "[ -~\n]{0,6}",
        Just("4294967295".to_string()),
        Just("99999999999999999999".to_string()),
        Just("[0-99999]".to_string()),
        Just("=(IDX:63-0)".to_string()),
        Just("é".to_string()),
    ];
    proptest::collection::vec((any::<prop::sample::Index>(), words), 1..12).prop_map(move |cuts| {
        let mut text: Vec<char> = captured(what).chars().collect();
        for (at, word) in cuts {
            let at = at.index(text.len());
            let end = (at + word.chars().count()).min(text.len());
            text.splice(at..end, word.chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn jobs_and_nodes(jobs in damaged("jobs"), nodes in damaged("nodes")) {
        let machine = Recorded::default()
            .command("scontrol show config", &captured("config"))
            .command("scontrol -d show nodes", &nodes);
        let Ok(site) = Site::read(&machine, None) else { return Ok(()) };
        prop_assert_eq!(site.cluster.nodes.len(), site.nodes.len());
        let jobs = Job::parse_all(&jobs);
        for job in &jobs {
            prop_assert!(job.min_nodes >= 1 && job.min_nodes <= job.max_nodes);
            let _ = job.gpu_count();
            if let Some(request) = JobRequest::of_job(job, &JobOptions::default(), &site) {
                let state = request.state(&site, &jobs);
                prop_assert_eq!(state.len(), site.nodes.len());
                for state in state {
                    prop_assert!(state.free.minus(state.present).is_empty());
                }
            }
        }
    }

    #[test]
    fn anything(text in "\\PC{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Job::parse_all(&format!("JobId={text}")), Running::parse(&text), options_in_script(&text));
        let _ = NodeRecord::parse_all(&format!("NodeName=n1\n   Gres={text}\n   GresUsed={text}"));
        let _ = elf::read(&[&b"\x7fELF\x02\x01\x01"[..], &bytes].concat());
    }
}
