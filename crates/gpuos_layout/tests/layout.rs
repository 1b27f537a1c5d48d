//! The layout read from headers: exact on a small source tree, and equal to the built-in table
//! on real source where that is at hand (`GPUOS_SLURM_SOURCES`: directories with `:` between).

use std::fs;
use std::path::Path;
use std::process::Command;

/// Headers of an invented Slurm. Every structure of the table is there.
const SLURM_H: &str = r#"
#pragma once
#include <stdint.h>
#include <stdbool.h>
#include <time.h>
#include <slurm/slurm_version.h>
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(27,5,0)
#error "the release did not arrive"
#endif
typedef struct xlist list_t;
typedef int64_t bitstr_t;
typedef struct job_descriptor { char *account; uint16_t type; time_t begin; } job_desc_msg_t;
typedef struct { time_t last_update; char *cluster; double f; } slurm_conf_t;
typedef struct slurmdb_assoc_rec { char *acct; uint32_t uid; } slurmdb_assoc_rec_t;
typedef struct { uint32_t id; bitstr_t *preempt_bitstr; } slurmdb_qos_rec_t;
"#;
const GRES_H: &str = r#"
#pragma once
typedef enum { A, B } gres_state_type_enum_t;
typedef struct { int major; int minor; } gres_device_id_t;
typedef struct { int index; gres_device_id_t dev; } gres_device_t;
typedef struct gres_job_state { uint32_t id; bitstr_t **bits; } gres_job_state_t;
typedef struct gres_node_state { bool on; uint8_t set[33]; uint64_t n; } gres_node_state_t;
typedef struct gres_slurmd_conf { uint32_t flags; } gres_slurmd_conf_t;
typedef struct gres_state { void *data; gres_state_type_enum_t type; struct gres_state *next; } gres_state_t;
typedef struct gres_step_state { uint16_t a; } gres_step_state_t;
typedef struct { uint32_t cpus; void *(*call)(int); bool in_slurmd; } node_config_load_t;
"#;
const CTLD_H: &str = r#"
#pragma once
#include "src/common/gres.h"
typedef struct job_details { uint32_t magic; } job_details_t;
struct job_record { uint32_t magic; list_t *list; struct job_details *details; };
struct job_resources { uint16_t *cpus; };
struct node_record { char name[10]; };
typedef struct { uint32_t magic; } part_record_t;
"#;

fn invented(dir: &Path) {
    for (name, text) in [
        ("META", "  Meta:\t1\n  Name:\tslurm\n  Version:\t27.05.1\n"),
        ("slurm/slurm.h", SLURM_H),
        ("src/common/gres.h", GRES_H),
        ("src/slurmctld/slurmctld.h", CTLD_H),
    ] {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Whether libclang is there at all; without it there is nothing to test.
fn libclang() -> bool {
    std::panic::catch_unwind(bindgen::clang_version).is_ok()
}

#[test]
fn an_invented_source_gives_its_layout() {
    if !libclang() {
        eprintln!("skipped: no libclang on this machine");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    invented(dir.path());
    let text = gpuos_layout::read(dir.path(), None).unwrap().to_tsv();
    let rows: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows[0], "struct\tfield\toffset\tsize\tctype\tfirst\tlast");
    for row in [
        "gres_device\tdev\t4\t8\tgres_device_id_t",
        "gres_job_state\tbits\t8\t8\tbitstr_t * *",
        "gres_node_state\ton\t0\t1\t_Bool",
        "gres_node_state\tset\t1\t33\tuint8_t [33]",
        "gres_node_state\tn\t40\t8\tuint64_t",
        "gres_state\ttype\t8\t4\tgres_state_type_enum_t",
        "gres_state\tnext\t16\t8\tstruct gres_state *",
        "job_descriptor\ttype\t8\t2\tuint16_t",
        "job_record\tlist\t8\t8\tlist_t *",
        "job_record\tdetails\t16\t8\tstruct job_details *",
        "job_resources\tcpus\t0\t8\tuint16_t *",
        "node_config_load\tin_slurmd\t16\t1\t_Bool",
        "node_record\tname\t0\t10\tchar [10]",
        "part_record\tmagic\t0\t4\tuint32_t",
        "slurm_conf\tf\t16\t8\tdouble",
        "slurmdb_assoc_rec\tuid\t8\t4\tuint32_t",
        "slurmdb_qos_rec\tpreempt_bitstr\t8\t8\tbitstr_t *",
    ] {
        assert!(
            rows.contains(&format!("{row}\t27.05.1\t27.05.1").as_str()),
            "{row} is missing in\n{text}"
        );
    }
    assert!(
        !text.contains("\tcall\t"),
        "function pointers stay out of the table"
    );
}

#[test]
fn a_header_without_a_structure_is_refused() {
    if !libclang() {
        eprintln!("skipped: no libclang on this machine");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    invented(dir.path());
    let path = dir.path().join("src/slurmctld/slurmctld.h");
    fs::write(&path, CTLD_H.replace("node_record", "host_record")).unwrap();
    let error = gpuos_layout::read(dir.path(), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no struct node_record"), "{error}");
}

#[test]
fn wrong_input_is_one_sentence_and_the_right_exit_code() {
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos-layout"))
            .args(args)
            .output()
            .unwrap();
        let text = [out.stdout, out.stderr].concat();
        (out.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let (code, text) = run(&[path]);
    assert_eq!(code, 1);
    assert!(text.contains("is not a Slurm source directory"), "{text}");
    let (code, _) = run(&[]);
    assert_eq!(code, 2);

    invented(dir.path());
    let (code, text) = run(&[path, "--release", "27.5"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("--release 27.5: write three numbers"),
        "{text}"
    );
    fs::write(dir.path().join("META"), "Version: 27.05.0-0rc1\n").unwrap();
    let (code, text) = run(&[path, "--json"]);
    assert_eq!(code, 1);
    let error: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["schema"], "gpuos.error/1");
    assert!(
        error["error"]
            .as_str()
            .unwrap()
            .contains("27.05.0-0rc1, which is no release")
    );
}

/// Number of a release, to compare by.
fn number(release: &str) -> Vec<u32> {
    release.split('.').map(|n| n.parse().unwrap()).collect()
}

#[test]
fn real_sources_give_the_rows_of_the_built_in_table() {
    let Ok(sources) = std::env::var("GPUOS_SLURM_SOURCES") else {
        eprintln!("skipped: GPUOS_SLURM_SOURCES names no Slurm sources");
        return;
    };
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../slurm_ffi/data/layouts.tsv");
    let table = fs::read_to_string(table).unwrap();
    for source in sources.split(':').filter(|s| !s.is_empty()) {
        // Trees without META: the release stands in the directory's name, slurm-24-11-5-1.
        let dir = Path::new(source);
        let name = dir.file_name().unwrap().to_str().unwrap();
        let named: Vec<&str> = name.split('-').skip(1).take(3).collect();
        let release = (!dir.join("META").is_file()).then(|| named.join("."));
        let layout = gpuos_layout::read(dir, release.as_deref()).unwrap();
        let at = number(&layout.release);
        let mut want: Vec<String> = table
            .lines()
            .filter(|l| !l.starts_with('#') && !l.starts_with("struct\t"))
            .map(|l| l.split('\t').collect::<Vec<_>>())
            .filter(|f| number(f[5]) <= at && at <= number(f[6]))
            .map(|f| f[..5].join("\t"))
            .collect();
        let mut got: Vec<String> = layout
            .rows
            .iter()
            .map(|r| {
                format!(
                    "{}\t{}\t{}\t{}\t{}",
                    r.structure, r.field, r.offset, r.size, r.ctype
                )
            })
            .collect();
        want.sort();
        got.sort();
        assert!(
            want.len() > 500,
            "the table has no rows for {}",
            layout.release
        );
        for row in &want {
            assert!(
                got.contains(row),
                "{source}: {row} is not what the headers say"
            );
        }
        assert_eq!(got, want, "{source}");
    }
}
