//! `gpuos topo`.

use std::process::Command;

use crate::site::{RELEASES, Site};

#[test]
fn topo_shows_the_fabric_and_the_links() {
    for release in RELEASES {
        let site = Site::new(release);
        let answer = site.run(&["topo"]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert!(
            answer
                .out
                .contains(&format!("Cluster cap, Slurm {release}: 4 nodes, 32 GPUs, "))
        );
        assert!(
            answer.out.contains("1 node out of service"),
            "{}",
            answer.out
        );
        let tree: Vec<&str> = answer
            .out
            .lines()
            .filter_map(|l| l.trim_start().split("  ").next())
            .collect();
        let at = |name: &str| {
            tree.iter()
                .position(|l| *l == name)
                .unwrap_or_else(|| panic!("{name} in {tree:?}"))
        };
        assert!(at("spine spine1") < at("leaf leaf1") && at("leaf leaf1") < at("n1"));
        assert!(at("n2") < at("leaf leaf2") && at("leaf leaf2") < at("n3"));
        assert!(
            !answer.out.contains('\x1b'),
            "no colour when it is not a terminal"
        );

        let matrix = site.run(&["topo", "n2"]).out;
        for word in [
            "GPU7",
            "mlx5_0",
            "CPU Affinity",
            "NUMA Affinity",
            "NV18",
            "PIX",
            "SYS",
            "PXB",
            "PHB",
            "NODE",
        ] {
            assert!(matrix.contains(word), "{word} is missing in\n{matrix}");
        }
        let row = matrix.lines().find(|l| l.starts_with("GPU0 ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells[1..9],
            ["X", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18"]
        );
        assert_eq!(cells[9], "PIX");
    }
}

#[test]
fn a_node_type_of_a_named_file_needs_no_slurm() {
    let site = Site::new("24.11.5");
    site.file(
        "own.toml",
        "[[node-type]]\nname = \"mine\"\nbase = \"pairs-8\"\n",
    );
    let own = site.path("own.toml");
    let run = |variable: Option<&str>, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuos"));
        command
            .args(["topo", "--type", "mine"])
            .args(args)
            .env_clear();
        command.envs(variable.map(|file| ("GPUOS_CONF", file)));
        let answer = command.output().unwrap();
        (
            answer.status.success(),
            String::from_utf8(answer.stderr).unwrap(),
        )
    };
    assert_eq!(run(Some(&own), &[]), (true, String::new()));
    assert_eq!(run(None, &["--config", &own]), (true, String::new()));
    assert!(run(None, &[]).1.contains("no node type mine"));
    assert!(
        run(Some("/none.toml"), &[])
            .1
            .contains("cannot read /none.toml")
    );
    // A mistake in the file beside slurm.conf is told, not passed over.
    site.file("gpuos.toml", "[slurm\n");
    let broken = site.run(&["topo", "--type", "dgx-h100"]);
    assert_eq!(broken.code, 1);
    assert!(broken.err.contains("gpuos.toml:1:"), "{}", broken.err);
}

#[test]
fn a_node_type_needs_no_slurm() {
    let answer = Command::new(env!("CARGO_BIN_EXE_gpuos"))
        .args(["topo", "--type", "pairs-8"])
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success());
    let row: Vec<&str> = text
        .lines()
        .find(|l| l.starts_with("GPU0 "))
        .unwrap()
        .split_whitespace()
        .collect();
    assert!(
        row[1] == "X" && row[2].starts_with("NV") && !row[3].starts_with("NV"),
        "{row:?}"
    );
}
