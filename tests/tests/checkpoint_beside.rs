//! How long an MPI program stands still for a checkpoint: with gpuos, with SCR's own library, and with files that it writes itself.
//!
//! `GPUOS_CKPT_BESIDE=COUNT` has each save so often, by `make ckpt-beside`; without it nothing is done. `GPUOS_SCR` is the folder where SCR is installed, with its
//! libraries and the header; without it that row is left out. `GPUOS_CKPT_BESIDE_MIB` is what a rank saves, and with `GPUOS_WRITE=1` the table is written to
//! docs/results.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, measured_runs, plugins, results, skip};

use crate::checkpoint::output;
use crate::checkpoint_matrix::{folders_of_pmix, root};

const PROGRAM: &str = include_str!("checkpoint_beside/saves.c");

/// With a rank each.
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Seconds between two checkpoints: enough that the one before is stored.
const PAUSE: u32 = 5;

struct Measure {
    cluster: Cluster,
    compiler: &'static str,
    scr: Option<PathBuf>,
    count: u32,
    mib: u64,
}

/// A way to save, with the seconds for which the program stood still.
struct Row {
    name: &'static str,
    survives: &'static str,
    stood: Vec<f64>,
}

#[test]
fn a_program_that_saves_beside_scr_and_plain_files() {
    let Some(count) = measured_runs("GPUOS_CKPT_BESIDE", "make ckpt-beside") else {
        return;
    };
    let mut setup = Setup::new("ckpt-beside", &Suite::Native);
    setup.spec.nodes = NODES.len().into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let _temporary = folders_of_pmix(&mut setup, &NODES);
    let Some(cluster) = setup.steered() else {
        return;
    };
    let is_open_mpi = |compiler: &&str| {
        let out = Command::new(compiler).arg("--showme:version").output();
        out.is_ok_and(|out| out.status.success())
    };
    let mut compilers = ["mpicc.openmpi", "mpicc"].into_iter();
    let types = cluster.run("sh", &["-c", "srun --mpi=list 2>&1"]);
    let Some(compiler) = compilers
        .find(is_open_mpi)
        .filter(|_| types.contains("pmix"))
    else {
        return skip(
            "SCR beside gpuos",
            "Open MPI and PMIx: scripts/needs.sh mpi",
        );
    };
    let scr = std::env::var_os("GPUOS_SCR").map(PathBuf::from);
    if scr.is_none() {
        skip(
            "SCR's own library",
            "GPUOS_SCR names no folder: make ckpt-beside SCR=FOLDER",
        );
    }
    let mib = std::env::var("GPUOS_CKPT_BESIDE_MIB");
    let measure = Measure {
        cluster,
        compiler,
        scr,
        count: u32::try_from(count).expect("a number of checkpoints"),
        mib: mib.ok().and_then(|mib| mib.parse().ok()).unwrap_or(256),
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let rows = measure.rows();
    let mut table = String::from(
        "| how | what may be lost | median s | longest s | MiB/s of all ranks |\n| --- | --- | ---: | ---: | ---: |\n",
    );
    for row in &rows {
        let _ = writeln!(table, "{}", row.line(measure.mib));
    }
    eprintln!("{table}");
    if results::wanted() {
        measure.write(&rows, &table, load.split(' ').next().unwrap_or_default());
    }
}

impl Row {
    fn sorted(&self) -> Vec<f64> {
        let mut stood = self.stood.clone();
        stood.sort_unstable_by(f64::total_cmp);
        stood
    }

    fn line(&self, mib: u64) -> String {
        let stood = self.sorted();
        let (median, longest) = (stood[stood.len() / 2], stood[stood.len() - 1]);
        let rate = (mib * NODES.len() as u64) as f64 / median;
        format!(
            "| {} | {} | {median:.2} | {longest:.2} | {rate:.0} |",
            self.name, self.survives
        )
    }
}

impl Measure {
    fn work(&self) -> PathBuf {
        self.cluster.lab.dir().join("work")
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let row = |name, survives, stood| Row {
            name,
            survives,
            stood,
        };
        let gpuos = self.gpuos();
        let option = format!("--gpuos-checkpoint={PAUSE}s,l2=xor:{}", NODES.len());
        let stood = self.run(&gpuos, &[&option], "");
        rows.push(row("gpuos, `l2=xor:3`", "any node of the three", stood));
        if let Some(scr) = &self.scr {
            let program = self.scr_own(scr);
            for (name, kind, survives) in [
                ("SCR, `XOR`", "XOR", "any node of the three"),
                ("SCR, `SINGLE`", "SINGLE", "no node; the program alone"),
            ] {
                let stood = self.run(&program, &[], &self.scr_environment(kind));
                rows.push(row(name, survives, stood));
            }
        }
        let plain = self.plain();
        let folder = self.work().join("plain-files");
        fs::create_dir_all(&folder).expect("a folder");
        let environment = format!("PLAIN_FOLDER={}", folder.display());
        let stood = self.run(&plain, &[], &environment);
        let survives = "all nodes, where the folder is on a parallel file system";
        rows.push(row("files of its own, and fsync", survives, stood));
        rows
    }

    /// Has the program save, and gives the seconds of each time.
    fn run(&self, program: &str, options: &[&str], environment: &str) -> Vec<f64> {
        let (mib, count) = (self.mib, self.count);
        // Three ranks that wait for each other may have fewer processors than they are.
        let script = format!(
            "srun --kill-on-bad-exit --mpi=pmix env OMPI_MCA_mpi_yield_when_idle=1 {environment} {program} {mib} {count} {PAUSE}"
        );
        let shape = ["-N3", "--ntasks-per-node=1"];
        let job = self.cluster.sbatch(&[&shape, options].concat(), &script);
        self.cluster.wait(job, &["COMPLETED"]);
        let text = output(&self.cluster, job);
        let lines = text.lines().filter_map(|line| line.strip_prefix("stood "));
        let stood: Vec<f64> = lines.filter_map(|line| line.parse().ok()).collect();
        assert_eq!(stood.len(), count as usize, "{text}");
        stood
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.work().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("saves.c"), PROGRAM).expect("written");
        folder
    }

    fn compile(&self, folder: &Path, arguments: &[&str]) -> String {
        let out = Command::new(self.compiler)
            .current_dir(folder)
            .args(["-O2", "-D_DEFAULT_SOURCE", "-o", "saves", "saves.c"])
            .args(arguments)
            .output()
            .expect("the compiler runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        folder.join("saves").display().to_string()
    }

    fn gpuos(&self) -> String {
        let folder = self.folder("with-gpuos");
        for name in ["libscr-gpuos.so.0", "libscr.so"] {
            let built = plugins::programs().join("libscr.so");
            symlink(built, folder.join(name)).expect("a link");
        }
        let include = format!("-I{}/include", root().display());
        self.compile(&folder, &[&include, "-L.", "-lscr", "-Wl,-rpath,$ORIGIN"])
    }

    /// Its ranks are on nodes of one machine. SCR tells nodes apart by their names, so each rank has a namespace with a name of its own.
    fn scr_own(&self, scr: &Path) -> String {
        let folder = self.folder("with-scr");
        let lib = ["lib", "lib64"].map(|lib| scr.join(lib));
        let lib = lib.iter().find(|lib| lib.join("libscr.so").exists());
        let lib = lib.expect("GPUOS_SCR has lib/libscr.so").display();
        let include = format!("-I{}", scr.join("include").display());
        let (library, path) = (format!("-L{lib}"), format!("-Wl,-rpath,{lib}"));
        let program = self.compile(&folder, &[&include, &library, "-lscr", &path]);
        let start = folder.join("start.sh");
        let lines = format!(
            "hostname $SLURMD_NODENAME\n\
             export SCR_CACHE_BASE=$SCR_CACHE_BASE/$SLURMD_NODENAME SCR_CNTL_BASE=$SCR_CNTL_BASE/$SLURMD_NODENAME\n\
             mkdir -p $SCR_CACHE_BASE $SCR_CNTL_BASE\n\
             cd $SCR_PREFIX\n\
             exec {program} \"$@\"\n"
        );
        fs::write(&start, lines).expect("written");
        format!("unshare --uts sh {}", start.display())
    }

    fn scr_environment(&self, kind: &str) -> String {
        let place = |name: &str| {
            let folder = self.work().join(format!("scr-{kind}-{name}"));
            fs::create_dir_all(&folder).expect("a folder");
            folder.display().to_string()
        };
        let (cache, control, prefix) = (place("cache"), place("control"), place("prefix"));
        format!(
            "SCR_USER_NAME=root SCR_CACHE_BASE={cache} SCR_CNTL_BASE={control} SCR_PREFIX={prefix} SCR_COPY_TYPE={kind} SCR_FLUSH=0 SCR_CACHE_SIZE=2 \
             SCR_CHECKPOINT_SECONDS={PAUSE} SCR_SET_SIZE={}",
            NODES.len()
        )
    }

    fn plain(&self) -> String {
        self.compile(&self.folder("plain"), &["-DPLAIN"])
    }

    fn write(&self, rows: &[Row], table: &str, load: &str) {
        let date = results::today();
        let mut csv = String::from("date,how,stood_s\n");
        for row in rows {
            for stood in &row.stood {
                let _ = writeln!(csv, "{date},\"{}\",{stood}", row.name);
            }
        }
        let (slurm, mib, count) = (self.cluster.lab.version(), self.mib, self.count);
        let made = format!(
            "{date}, Slurm {slurm}, {} ranks with {mib} MiB each, {count} checkpoints each, load average before them {load}.\n\n{table}",
            NODES.len()
        );
        results::write("ckpt-beside", &csv, &made);
    }
}
