//! The programs of the matrix, compiled in the lab's folder, and how each is started. What this machine lacks is left out, and said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_tests::{Cluster, plugins, skip};

use super::PATIENCE;
use super::victims::{VICTIMS, Victim};

/// The programs, in the order of the table.
pub(crate) const NAMES: [&str; 6] = [
    "sh",
    "C",
    "Python",
    "C with SCR",
    "Open MPI with SCR",
    "PyTorch",
];

/// A program and how its ranks are started.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Behind `sh ./rank.sh`, with the word LIMIT for that to which it counts.
    pub(crate) command: String,
    pub(crate) ranks: u32,
    /// Options of srun.
    pub(crate) srun: &'static str,
    /// The lines with which each rank of undisturbed runs ends, by what they count to; none where it has no result but its count.
    pub(crate) results: BTreeMap<u64, String>,
    /// It takes long until its loop begins.
    pub(crate) is_slow: bool,
    /// What it does not come through, with checkpoints or without.
    pub(crate) not: Option<Victim>,
}

impl Program {
    fn of_three(name: &'static str, command: String) -> Program {
        Program {
            name,
            command,
            ranks: 3,
            srun: "",
            results: BTreeMap::new(),
            is_slow: false,
            not: None,
        }
    }
}

/// A loop in Python whose ranks look for themselves, as those in sh and C do.
const LOOP: &str = "
import sys, time
from gpuos import checkpoint
ckpt, limit, count = checkpoint.Checkpoints(), int(sys.argv[1]), 0
start = ckpt.join()
if start:
    count = int((start.folder / 'count').read_text())
    print(f'restored checkpoint {start.number} at {count}', flush=True)
else:
    print('new', flush=True)
while count < limit:
    count += 1
    time.sleep(0.05)
    wanted = ckpt.wanted()
    if wanted:
        try:
            (ckpt.folder(wanted.number) / 'count').write_text(str(count))
            ckpt.ready(wanted.number)
            print(f'saved {wanted.number} at {count}', flush=True)
        except checkpoint.GivenUp as why:
            print(why, flush=True)
print(f'done at {count}', flush=True)
";

/// Where programs are made.
struct Place {
    root: PathBuf,
    work: PathBuf,
}

/// Compiles what is in C, and gives all programs that are wanted and for which this machine has what is needed.
pub(crate) fn programs(cluster: &Cluster, wanted: impl Fn(&str) -> bool) -> Vec<Program> {
    let root = super::root();
    let place = Place {
        work: cluster.lab.dir().join("work"),
        root,
    };
    let mut programs = place.by_files(cluster);
    programs.push(place.stand_in());
    if wanted("Open MPI with SCR") {
        match place.open_mpi(cluster) {
            Some(program) => programs.push(program),
            None => skip(
                "Open MPI",
                "no mpicc of it, or no srun --mpi=pmix here: scripts/needs.sh mpi",
            ),
        }
    }
    // What it computes undisturbed takes a while.
    if wanted("PyTorch") {
        match place.torch(cluster) {
            Some(program) => programs.push(program),
            None => skip("PyTorch", "no Python here has it: scripts/needs.sh torch"),
        }
    }
    programs.retain(|program| wanted(program.name));
    programs
}

impl Place {
    fn example(&self, name: &str) -> String {
        let file = self.root.join("examples/checkpoint").join(name);
        file.display().to_string()
    }

    /// A folder for programs, with gpuos's libraries under the names that they look for.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.work.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let built = plugins::programs();
        for (library, names) in [
            ("libgpuos.so", ["libgpuos.so.0", "libgpuos.so"]),
            ("libscr.so", ["libscr-gpuos.so.0", "libscr.so"]),
        ] {
            for other in names {
                symlink(built.join(library), folder.join(other)).expect("a link");
            }
        }
        folder
    }

    fn compile(&self, compiler: &str, folder: &Path, to: &str, arguments: &[&str]) {
        let mut cc = Command::new(compiler);
        cc.current_dir(folder)
            .args(["-D_DEFAULT_SOURCE", "-o", to])
            .arg(format!("-I{}/include", self.root.display()))
            .args(["-L.", "-Wl,-rpath,$ORIGIN"]);
        let out = cc.args(arguments).output().expect("the compiler runs");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    /// Those whose ranks look at the files for themselves.
    fn by_files(&self, cluster: &Cluster) -> Vec<Program> {
        let folder = self.folder("files");
        self.compile(
            "cc",
            &folder,
            "counter",
            &[&self.example("counter.c"), "-lgpuos"],
        );
        fs::write(self.work.join("loop.py"), LOOP).expect("written");
        let (share, python) = (self.root.join("share"), self.root.join("python"));
        let sh = format!(
            "env GPUOS_HELPERS={} sh {} LIMIT 0.05",
            share.display(),
            self.example("counter.sh")
        );
        let interpreter = executable(cluster, "python3", "time").unwrap_or("python3".into());
        let python = format!(
            "env PYTHONPATH={} {interpreter} loop.py LIMIT",
            python.display()
        );
        vec![
            Program::of_three("sh", sh),
            Program::of_three("C", "./files/counter LIMIT 50".into()),
            Program::of_three("Python", python),
        ]
    }

    /// The functions of SCR, under a stand-in for MPI.
    fn stand_in(&self) -> Program {
        let folder = self.folder("stand-in");
        let mpi = self.root.join("crates/libscr/tests/mpi");
        let source = mpi.join("mpi.c").display().to_string();
        self.compile("cc", &folder, "libmpi.so", &["-shared", "-fPIC", &source]);
        let header = format!("-I{}", mpi.display());
        let counter = self.example("counter-scr.c");
        let arguments = ["-DWITH_MPI", &header, &counter, "-lscr", "-lmpi"];
        self.compile("cc", &folder, "counter", &arguments);
        Program::of_three("C with SCR", "./stand-in/counter LIMIT 50".into())
    }

    /// The same under Open MPI, with four ranks on three nodes.
    fn open_mpi(&self, cluster: &Cluster) -> Option<Program> {
        let is_open_mpi = |compiler: &&str| {
            let out = Command::new(compiler).arg("--showme:version").output();
            out.is_ok_and(|out| out.status.success())
        };
        let mut compilers = ["mpicc.openmpi", "mpicc"].into_iter();
        let compiler = compilers.find(is_open_mpi)?;
        let types = cluster.run("sh", &["-c", "srun --mpi=list 2>&1"]);
        types.contains("pmix").then_some(())?;
        let folder = self.folder("open-mpi");
        let counter = self.example("counter-scr.c");
        self.compile(
            compiler,
            &folder,
            "counter",
            &["-DWITH_MPI", &counter, "-lscr"],
        );
        Some(Program {
            ranks: 4,
            srun: "--mpi=pmix",
            is_slow: true,
            // The rank ends with it, of which Slurm hears nothing, and the others wait for it for ever.
            not: Some(Victim::Slurmstepd),
            ..Program::of_three("Open MPI with SCR", "./open-mpi/counter LIMIT 50".into())
        })
    }

    /// The training loop of the examples, over gloo.
    fn torch(&self, cluster: &Cluster) -> Option<Program> {
        // Debian's goes with its own Python, which need not be the first in PATH.
        let pythons = ["python3", "/usr/bin/python3"].into_iter();
        let mut those =
            pythons.filter_map(|python| executable(cluster, python, "torch.distributed"));
        let python = those.next()?;
        let (path, train) = (self.root.join("python"), self.example("train.py"));
        let command = format!(
            "env PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 {python} {train} LIMIT",
            path.display()
        );
        let program = Program::of_three("PyTorch", format!("{command} 0.05"));
        let limits: BTreeSet<u64> = VICTIMS.map(Victim::limit).into();
        let result = |limit: u64| {
            let command = command.replace("LIMIT", &limit.to_string());
            (limit, self.undisturbed(cluster, &command, program.ranks))
        };
        let results = limits.into_iter().map(result).collect();
        Some(Program {
            results,
            is_slow: true,
            ..program
        })
    }

    /// The line with which ranks of the training loop end that nothing disturbs.
    fn undisturbed(&self, cluster: &Cluster, command: &str, ranks: u32) -> String {
        let (folder, last) = (self.work.display(), ranks - 1);
        // Each into a file of its own: lines of several could stand inside each other.
        let script = format!(
            "cd {folder}
             rm -f undisturbed.*
             export INIT_METHOD=file://{folder}/undisturbed.store WORLD_SIZE={ranks}
             for rank in $(seq 0 {last}); do RANK=$rank {command} 0 >undisturbed.$rank & done
             wait
             cat undisturbed.?"
        );
        let out = cluster
            .lab
            .output_within("sh", &["-c", &script], PATIENCE)
            .expect("it runs");
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        let lines = out.lines().filter(|line| line.starts_with("parameters "));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), ranks as usize, "{out}");
        assert!(
            lines.iter().all(|line| *line == lines[0]),
            "all ranks have the same"
        );
        lines[0].to_string()
    }
}

/// The program behind a name of Python that has a module: a wrapper would start a shell each time. `None`: that Python is not there, or has no such module.
fn executable(cluster: &Cluster, python: &str, module: &str) -> Option<String> {
    let import = format!("import sys, {module}; print(sys.executable)");
    let out = cluster
        .lab
        .output_within(python, &["-c", &import], PATIENCE);
    let out = out.ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_string())
}
