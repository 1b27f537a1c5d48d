//! A private PBS whose hook has all to tell: four nodes with simulated GPUs, of which two can be divided, `gpuosd` and `gpuos_mover`.
//!
//! `lab NAME PBS BINARIES`: the lab stays until `gpuos lab down --name NAME`. It is no part of a crate: rustc builds it with `--extern gpuos_lab`
//! and `--extern gpuos_model` of a build of the workspace.

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::PbsLab;
use gpuos_model::gpuset::GpuSet;

/// Of 81559 MiB of a GPU most is kept, so that the host has room for what is parked and for memory beyond GPUs.
const GPUOS: &str = "[memory]\nturns = 2\noversubscribe = true\nreserve-mib = 65536\n\n\
                     [[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, pbs, binaries] = &words[..] else {
        panic!("give NAME, the prefix of PBS, and the folder of the built daemons");
    };
    let spec = LabSpec {
        name: name.clone(),
        nodes: 4.into(),
        node_type: "dgx-h100".into(),
        pbs: Some(pbs.into()),
        simulated_gpus: Some(binaries.into()),
        movers: Some(binaries.into()),
        mig: GpuSet::EMPTY.with(6).with(7),
        gpuos_toml: Some(GPUOS.into()),
        memory_turn: 1,
        detached: true,
        ..LabSpec::default()
    };
    let lab = PbsLab::up(&spec, &mut |step| eprintln!("{step}"));
    println!("{}", lab.expect("a lab").dir().display());
}
