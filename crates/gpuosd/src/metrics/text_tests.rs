//! The text as Prometheus gets it.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health::{Event, Sample};
use gpuos_core::job::JobId;
use gpuos_core::wire::{
    CheckpointFigures, CheckpointJob, CheckpointPhase, CheckpointRecoveries, MemoryGpuStatus,
    MemoryPressureStatus, MemoryStatus, MemoryTierStatus, MigLoad, Percent,
};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::mig::MigPlacement;

use super::*;
use crate::metrics::{Checkpoints, Counts, Holder, Slice};

fn gres(gpu: u8) -> GresGpu {
    GresGpu::try_from(gpu).expect("a GPU")
}

fn slice(gi: u32, start: u8, job: Option<JobId>, memory_mib: Option<(u64, u64)>) -> Slice {
    Slice {
        gpu: 4u8.try_into().unwrap(),
        number: "mig4".parse().unwrap(),
        gi,
        uuid: format!("MIG-{gi}"),
        profile: "1g.10gb".into(),
        placement: MigPlacement { start, size: 1 },
        job,
        memory_mib,
        load: MigLoad {
            sm_percent: memory_mib.map(|(_, used)| Percent::of_ratio(used as f64 / 4.0)),
            bandwidth_percent: (gi == 7).then(|| Percent::of_ratio(0.25)),
            load_unknown: None,
        },
    }
}

fn figures() -> CheckpointFigures {
    let leads = CheckpointJob {
        job: 17.into(),
        phase: CheckpointPhase::Running,
        leads: true,
        interval_s: Some(600),
        unsaved_s: Some(42),
        pause_ms: Some(1500),
        store_ms: Some(30_250),
        failed_in_row: 3,
        ..CheckpointJob::default()
    };
    let follows = CheckpointJob {
        job: 18.into(),
        leads: false,
        ..leads.clone()
    };
    let failed = CheckpointJob {
        job: 19.into(),
        phase: CheckpointPhase::Failed,
        ..CheckpointJob::default()
    };
    CheckpointFigures {
        made: 12,
        failed: 2,
        restored: 1,
        stored: Some(1 << 30),
        space: Some((3 << 30, 4 << 30)),
        kept: None,
        kept_more: false,
        recoveries: Some(CheckpointRecoveries {
            count: 3,
            parts_ms: [6500, 9000, 2250, 125],
            lost_s: 900,
            drills: (4, 1),
            last_well: Some(1_790_000_000),
            last_failed: None,
        }),
        settings: None,
        jobs: vec![leads, follows, failed],
    }
}

/// A node in which every figure is known.
fn full() -> Arc<Snapshot> {
    let sample = Sample {
        celsius: Some(61),
        memory_celsius: Some(70),
        slowdown_celsius: Some(87),
        power_mw: Some(650_500),
        power_limit_mw: Some(700_000),
        sm_mhz: Some(1980),
        memory_mhz: Some(2619),
        energy_mj: Some(123_456),
        clock_reasons: Some(0x40),
        thermal_ns: Some(2_500_000_000),
        power_brake_ns: Some(0),
        busy_percent: Some(97),
        memory_used_mib: Some(1),
        memory_total_mib: Some(81_559),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(1),
        ecc_corrected_ever: Some(30),
        ecc_uncorrected_ever: Some(10),
        sram_threshold: Some(false),
        rows_corrected: Some(2),
        rows_uncorrected: Some(1),
        rows_pending: Some(true),
        rows_failed: Some(false),
        pages_double_bit: Some(4),
        pages_pending: Some(false),
        nvlinks: 0x3_ffff,
        nvlinks_down: 0b11,
        nvlink_crc: Some(5),
        nvlink_replays: Some(6),
        nvlink_recoveries: Some(7),
        pcie_replays: Some(8),
        pcie_generation: Some(5),
        pcie_width: Some(16),
        pcie_width_most: Some(16),
        recovery_action: Some(1),
        processes: Some(2),
        ..Sample::default()
    };
    let gpu = |index, state, sample| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        name: "NVIDIA \"H100\"".into(),
        pci: "0000:1b:00.0".into(),
        state,
        faults: vec!["xid-79".into()],
        sample,
    };
    let mut counts = Counts::default();
    for _ in 0..2 {
        let xid = Event::Xid {
            gpu: gres(1).into(),
            code: 79,
            gpu_instance: None,
            compute_instance: None,
            pid: None,
        };
        counts.event(&xid);
    }
    counts.act(Act::Requeue, true);
    let holder = |step, user: &str| Holder {
        gpu: gres(0).into(),
        job: 17.into(),
        step,
        uid: 1000,
        user: user.into(),
    };
    Arc::new(Snapshot {
        node: "n1".into(),
        gpus: vec![
            gpu(gres(0).into(), GpuState::InUse, Some(sample)),
            gpu(gres(1).into(), GpuState::Drained, None),
        ],
        foreign: [(gres(1), 2)].into(),
        job_memory: [((gres(0), 17.into()), 4)].into(),
        holders: vec![holder(Some(0), "alice"), holder(Some(0xffff_fffb), "")],
        counts,
        node_drained: true,
        started_ms: 1_795_210_800_500,
        sampled_ms_ago: Some(1500),
        waiting: 3,
        peers: vec![("alive", 2), ("suspect", 1)],
        slices: vec![
            slice(7, 0, Some(17.into()), Some((9984, 3))),
            slice(8, 1, Some(17.into()), Some((9984, 0))),
            slice(9, 2, None, None),
        ],
        memory: MemoryStatus {
            gpus: vec![MemoryGpuStatus {
                gpu: gres(0).into(),
                hbm: MemoryTierStatus {
                    present: 80,
                    promised: 60,
                },
                in_turns: true,
                serialised: false,
                others: 5,
                link: 9,
                turn: Some(17.into()),
            }],
            pressure: MemoryPressureStatus {
                step: "notify".into(),
                available: Some(512),
                stalled: Some(200),
                short: vec![17.into()],
            },
            ..MemoryStatus::default()
        },
        nameless: false,
        checkpoints: Checkpoints::Told(Arc::new(figures())),
        troubles: vec!["slurmctld"],
    })
}

const PROCESS: Process = Process {
    resident_bytes: 7 << 20,
    cpu_seconds: 1.25,
};

#[test]
fn jobs_and_users_are_left_out_where_that_is_wanted() {
    let named = text(&full(), None);
    assert!(
        named.contains("jobid=") && named.contains("user="),
        "{named}"
    );
    let nameless = Arc::new(Snapshot {
        nameless: true,
        ..(*full()).clone()
    });
    let told = text(&nameless, None);
    let jobs = told.lines().filter(|line| line.contains("jobid="));
    assert!(
        jobs.clone()
            .all(|line| line.contains("jobid=\"hidden\"") || line.contains("jobid=\"\"")),
        "{told}"
    );
    assert!(!told.contains("user="), "{told}");
    // How many there are is told.
    assert!(told.contains("gpuos_jobs{"), "{told}");
}

#[test]
fn figures_come_with_their_units_and_labels() {
    let text = text(&full(), Some(PROCESS));
    let gpu = "node=\"n1\",gpu=\"0\",uuid=\"GPU-0\"";
    for line in [
        &format!("gpuos_gpu_utilization_ratio{{{gpu}}} 0.97"),
        &format!("gpuos_gpu_memory_used_bytes{{{gpu}}} 1048576.0"),
        &format!("gpuos_gpu_power_watts{{{gpu}}} 650.5"),
        &format!("gpuos_gpu_sm_clock_hertz{{{gpu}}} 1980000000.0"),
        &format!("gpuos_gpu_energy_joules_total{{{gpu}}} 123.456"),
        &format!("gpuos_gpu_ecc_errors_total{{{gpu},severity=\"uncorrected\"}} 1.0"),
        &format!("gpuos_gpu_thermal_slowdown_seconds_total{{{gpu}}} 2.5"),
        &format!("gpuos_gpu_nvlinks{{{gpu}}} 18.0"),
        &format!("gpuos_gpu_nvlinks_down{{{gpu}}} 2.0"),
        &format!("gpuos_gpu_clock_event{{{gpu},reason=\"hw_thermal_slowdown\"}} 1.0"),
        &format!("gpuos_gpu_clock_event{{{gpu},reason=\"sw_power_cap\"}} 0.0"),
        &format!("gpuos_gpu_recovery_action{{{gpu},action=\"gpu-reset\"}} 1.0"),
        &format!("gpuos_gpu_state{{{gpu},state=\"in_use\"}} 1.0"),
        &format!("gpuos_gpu_state{{{gpu},state=\"drained\"}} 0.0"),
        &format!("gpuos_gpu_foreign_processes{{{gpu}}} 0.0"),
        "gpuos_mig_instances{node=\"n1\",gpu=\"mig4\",profile=\"1g.10gb\",jobid=\"17\"} 2.0",
        "gpuos_mig_instances{node=\"n1\",gpu=\"mig4\",profile=\"1g.10gb\",jobid=\"\"} 1.0",
        "gpuos_memory_lent_bytes{node=\"n1\",gpu=\"0\"} 60.0",
        "gpuos_memory_others_bytes{node=\"n1\",gpu=\"0\"} 5.0",
        "gpuos_memory_link_bytes_per_second{node=\"n1\",gpu=\"0\"} 9.0",
        "gpuos_memory_host_lent_bytes{node=\"n1\"} 0.0",
        "gpuos_memory_in_turns{node=\"n1\",gpu=\"0\"} 1.0",
        "gpuos_memory_programs_stopped{node=\"n1\"} 0.0",
        "gpuos_memory_host_available_bytes{node=\"n1\"} 512.0",
        "gpuos_memory_pressure{node=\"n1\"} 1.0",
        "gpuos_memory_short_jobs{node=\"n1\"} 1.0",
        "gpuos_memory_heat_bytes{node=\"n1\",heat=\"cold\"} 0.0",
        "gpuos_memory_slowdown_ratio{node=\"n1\",kind=\"measured\"} 1.0",
        "gpuos_memory_programs{node=\"n1\",place=\"parked\"} 0.0",
        "gpuos_mig_info{node=\"n1\",gpu=\"mig4\",gi=\"8\",uuid=\"MIG-8\",profile=\"1g.10gb\",first_slice=\"1\",jobid=\"17\"} 1.0",
        "gpuos_mig_memory_total_bytes{node=\"n1\",gpu=\"mig4\",gi=\"7\"} 10468982784.0",
        "gpuos_mig_memory_used_bytes{node=\"n1\",gpu=\"mig4\",gi=\"7\"} 3145728.0",
        "gpuos_mig_memory_used_bytes{node=\"n1\",gpu=\"mig4\",gi=\"8\"} 0.0",
        "gpuos_mig_sm_utilization_ratio{node=\"n1\",gpu=\"mig4\",gi=\"7\"} 0.75",
        "gpuos_mig_sm_utilization_ratio{node=\"n1\",gpu=\"mig4\",gi=\"8\"} 0.0",
        "gpuos_mig_memory_bandwidth_utilization_ratio{node=\"n1\",gpu=\"mig4\",gi=\"7\"} 0.25",
        &format!("gpuos_gpu_job_memory_used_bytes{{{gpu},jobid=\"17\"}} 4194304.0"),
        &format!("gpuos_gpu_job_info{{{gpu},jobid=\"17\",step=\"0\",user=\"alice\"}} 1.0"),
        &format!("gpuos_gpu_job_info{{{gpu},jobid=\"17\",step=\"batch\",user=\"1000\"}} 1.0"),
        "gpuos_gpu_xid_errors_total{node=\"n1\",gpu=\"1\",uuid=\"GPU-1\",code=\"79\"} 2.0",
        "gpuos_gpu_out_of_service{node=\"n1\",gpu=\"1\",uuid=\"GPU-1\"} 1.0",
        "gpuos_gpu_polled{node=\"n1\",gpu=\"1\",uuid=\"GPU-1\"} 0.0",
        "gpuos_actions_total{node=\"n1\",action=\"requeue\",result=\"ok\"} 1.0",
        "gpuos_jobs{node=\"n1\"} 1.0",
        "gpuosd_sample_age_seconds{node=\"n1\"} 1.5",
        "gpuosd_trouble{node=\"n1\",what=\"slurmctld\"} 1.0",
        "gpuosd_peers{node=\"n1\",state=\"alive\"} 2.0",
        "gpuosd_peers{node=\"n1\",state=\"suspect\"} 1.0",
        "gpuos_checkpoint_mover_up{node=\"n1\"} 1.0",
        "gpuos_checkpoint_jobs{node=\"n1\",phase=\"running\"} 2.0",
        "gpuos_checkpoint_jobs{node=\"n1\",phase=\"failed\"} 1.0",
        "gpuos_checkpoint_jobs{node=\"n1\",phase=\"gathering\"} 0.0",
        "gpuos_checkpoints_total{node=\"n1\",result=\"ok\"} 12.0",
        "gpuos_checkpoints_total{node=\"n1\",result=\"failed\"} 2.0",
        "gpuos_checkpoint_restores_total{node=\"n1\"} 1.0",
        "gpuos_checkpoint_recoveries_total{node=\"n1\"} 3.0",
        "gpuos_checkpoint_recovery_seconds_total{node=\"n1\",part=\"detection\"} 6.5",
        "gpuos_checkpoint_recovery_seconds_total{node=\"n1\",part=\"load\"} 0.125",
        "gpuos_checkpoint_lost_work_seconds_total{node=\"n1\"} 900.0",
        "gpuos_checkpoint_drills_total{node=\"n1\",result=\"failed\"} 1.0",
        "gpuos_checkpoint_last_drill_timestamp_seconds{node=\"n1\",result=\"ok\"} 1790000000.0",
        "gpuos_checkpoint_stored_bytes{node=\"n1\"} 1073741824.0",
        "gpuos_checkpoint_disk_free_bytes{node=\"n1\"} 3221225472.0",
        "gpuos_checkpoint_disk_bytes{node=\"n1\"} 4294967296.0",
        "gpuos_checkpoint_interval_seconds{node=\"n1\",jobid=\"17\"} 600.0",
        "gpuos_checkpoint_unsaved_seconds{node=\"n1\",jobid=\"17\"} 42.0",
        "gpuos_checkpoint_failed_in_row{node=\"n1\",jobid=\"17\"} 3.0",
        "gpuos_checkpoint_pause_seconds{node=\"n1\",jobid=\"17\"} 1.5",
        "gpuos_checkpoint_store_seconds{node=\"n1\",jobid=\"17\"} 30.25",
        "process_start_time_seconds 1795210800.5",
        "process_resident_memory_bytes 7340032.0",
        "process_cpu_seconds_total 1.25",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}\nin\n{text}");
    }
    assert!(text.contains("name=\"NVIDIA \\\"H100\\\"\""), "{text}");
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains("jobid=\"18\""), "another node leads it");
    assert!(
        !text.contains("celsius{node=\"n1\",gpu=\"1\""),
        "of a GPU that does not answer nothing is told"
    );
}

/// Names with unit and `_total`, and the type of each.
fn families(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let split = types.filter_map(|line| line.split_once(' '));
    let named = |(name, kind): (&str, &str)| match kind {
        "counter" => (format!("{name}_total"), kind.to_string()),
        _ => (name.to_string(), kind.to_string()),
    };
    split.map(named).collect()
}

#[test]
fn each_family_has_help_comes_once_and_has_one_value_for_its_labels() {
    let text = text(&full(), Some(PROCESS));
    let heads: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .collect();
    assert_eq!(heads.len(), families(&text).len(), "no family comes twice");
    for name in families(&text).keys() {
        let base = name.strip_suffix("_total").unwrap_or(name);
        assert!(text.contains(&format!("# HELP {base} ")), "{name}");
        assert!(
            name.starts_with("gpuos") || name.starts_with("process_"),
            "{name}"
        );
    }
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = series
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(s, _)| s)
        .collect();
    let distinct: BTreeSet<&str> = series.iter().copied().collect();
    assert_eq!(series.len(), distinct.len(), "a series comes twice");
}

#[test]
fn a_mover_that_is_silent_is_told_and_one_that_nobody_wants_is_not() {
    let told = |checkpoints| {
        let snapshot = Snapshot {
            checkpoints,
            ..(*full()).clone()
        };
        text(&Arc::new(snapshot), None)
    };
    let silent = told(Checkpoints::Silent);
    let lines = silent
        .lines()
        .filter(|line| line.starts_with("gpuos_checkpoint"));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["gpuos_checkpoint_mover_up{node=\"n1\"} 0.0"]
    );
    assert!(!told(Checkpoints::Unasked).contains("gpuos_checkpoint"));
}

#[test]
fn an_empty_node_is_told_too() {
    let text = text(&Arc::default(), None);
    assert!(
        text.contains("gpuosd_build_info") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

fn file(path: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Words of a text that are names of metrics of ours.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = |word: &&str| {
        [
            "gpuos_gpu_",
            "gpuos_mig_",
            "gpuos_node_",
            "gpuos_jobs",
            "gpuos_actions",
            "gpuos_checkpoint",
            "gpuos_warnings",
            "gpuosd_",
            "process_",
        ]
        .iter()
        .any(|start| word.starts_with(start))
    };
    words.filter(ours).map(String::from).collect()
}

#[path = "../../../../tests/reference/page.rs"]
mod page;

const HEAD: &str = "\
# Metrics

Each metric that gpuosd gives to Prometheus, with what stands beside it there. [admin/metrics.md](../admin/metrics.md) says how to read them. This
page is made of the text for Prometheus by `make reference`.

| metric | type | labels | what |
| --- | --- | --- | --- |
";

/// Names of the labels of a family's series.
fn labels(text: &str, family: &str) -> Vec<String> {
    let series = text.lines().filter_map(|line| line.strip_prefix(family));
    let inside = series.filter_map(|rest| rest.strip_prefix('{')?.split_once('}'));
    let of = |(labels, _): (&str, &str)| {
        let names = labels
            .split("\",")
            .filter_map(|label| label.split_once('='));
        names.map(|(name, _)| name.to_string()).collect()
    };
    inside.map(of).next().unwrap_or_default()
}

#[test]
fn the_page_in_the_reference_has_every_metric() {
    let text = text(&full(), Some(PROCESS));
    let mut page = HEAD.to_string();
    for (name, kind) in families(&text) {
        let base = name.strip_suffix("_total").unwrap_or(&name);
        let help = format!("# HELP {base} ");
        let what = text.lines().find_map(|line| line.strip_prefix(&help));
        let labels = labels(&text, &name)
            .into_iter()
            .map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        page += &format!(
            "| `{name}` | {kind} | {labels} | {} |\n",
            what.unwrap_or_default()
        );
    }
    page::hold("reference/metrics.md", &page, "make reference");
}

#[test]
fn the_docs_name_metrics_that_there_are() {
    let known: BTreeSet<String> = families(&text(&full(), Some(PROCESS)))
        .into_keys()
        .collect();
    let named = named(&file("docs/admin/metrics.md"));
    let strange: Vec<&String> = named.difference(&known).collect();
    assert!(strange.is_empty() && named.len() > 20, "{strange:?}");
}

#[test]
fn dashboard_and_rules_name_metrics_that_there_are() {
    let known: BTreeSet<String> = families(&text(&full(), Some(PROCESS)))
        .into_keys()
        .collect();
    for path in [
        "packaging/grafana/gpuos.json",
        "packaging/prometheus/gpuos.rules.yml",
    ] {
        let used = named(&file(path));
        let strange: Vec<&String> = used.difference(&known).collect();
        assert!(
            strange.is_empty() && used.len() > 5,
            "{path} names {strange:?}"
        );
    }
    serde_json::from_str::<serde_json::Value>(&file("packaging/grafana/gpuos.json")).unwrap();
}
