//! A private Grid Engine of Debian's packages: qmaster on `head`, and hosts with GPUs, each with namespaces of its own. All of it
//! ends with its first process; nothing of it is installed on the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::cache_dir;
use gpuos_tests::plugins::{daemons, programs};
use gpuos_tests::{skip, suites};

/// How long something may take that happens at all.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The hosts with GPUs: one whose kind of node is told, and one whose GPUs a simulated library shows.
pub const HOSTS: [&str; 2] = ["n1", "n2"];

/// GPUs of each.
pub const GPUS: usize = 8;

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gridengine")
}

fn ran(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    said
}

/// The folder with the packages; `None`, and a line on standard error, where there can be none.
pub fn packages(what: &str) -> Option<PathBuf> {
    if suites().is_empty() && std::env::var_os("GPUOS_TEST_GRIDENGINE").is_none() {
        skip(what, "GPUOS_TEST_SUITES is none");
        return None;
    }
    if ran(Command::new("id").arg("-u")).trim() != "0" {
        skip(what, "a private Grid Engine is root's");
        return None;
    }
    let cache = cache_dir();
    let folder = cache.parent().unwrap_or(&cache).join("gridengine");
    let fetched = Command::new("sh")
        .arg(here().join("fetch.sh"))
        .arg(&folder)
        .output()
        .expect("sh");
    if !fetched.status.success() {
        skip(what, String::from_utf8_lossy(&fetched.stderr).trim());
        return None;
    }
    Some(folder)
}

/// A private Grid Engine.
pub struct Grid {
    /// What all hosts see under this path.
    pub dir: PathBuf,
    child: Child,
    pids: Vec<(String, u32)>,
    _folder: tempfile::TempDir,
}

impl Drop for Grid {
    fn drop(&mut self) {
        // Its namespaces, and so all of its processes, end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The folder is removed when nobody writes there any more.
        let deadline = Instant::now() + LIMIT;
        let is_there = |(_, pid): &(String, u32)| Path::new(&format!("/proc/{pid}")).exists();
        while self.pids.iter().any(is_there) && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
    }
}

impl Grid {
    /// Starts it, with gpuos as packaging/gridengine/setup.sh tells it.
    pub fn up(packages: &Path) -> Grid {
        Grid::up_with(packages, false)
    }

    /// The same with a gpuos_mover on each host, which keeps the checkpoints of jobs and drains them to `pfs`, a folder that all hosts have.
    pub fn up_with_movers(packages: &Path) -> Grid {
        let grid = Grid::up_with(packages, true);
        for host in HOSTS {
            grid.start_mover(host);
        }
        let line = "sh /usr/share/gpuos/gridengine/setup.sh gpu.q --store";
        // It may be run again, and changes what was set up for files.
        for _ in 0..2 {
            grid.ok("head", "root", line);
        }
        grid
    }

    fn up_with(packages: &Path, movers: bool) -> Grid {
        let folder = tempfile::Builder::new()
            .prefix("gpuos-ge-")
            .tempdir()
            .expect("a folder");
        let dir = folder.path().to_path_buf();
        let all: Vec<&str> = ["head"].into_iter().chain(HOSTS).collect();
        ran(Command::new("sh")
            .arg(here().join("make.sh"))
            .arg(&dir)
            .arg(packages)
            .args(&all));
        let share = dir.join("share/gpuos");
        fs::create_dir_all(&share).expect("a folder");
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/gridengine");
        ran(Command::new("cp").arg("-r").arg(shipped).arg(&share));
        Grid::place_command(&dir);
        if movers {
            Grid::place_movers(&dir);
        }
        let log = fs::File::create(dir.join("lab.log")).expect("a file");
        // It ends with the test, also where that is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(["--fork", "--kill-child", "--pid", "--mount", "--net", "sh"])
            .arg(here().join("lab.sh"))
            .arg(&dir)
            .arg(packages)
            .arg(GPUS.to_string())
            .args(&all)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("setpriv");
        let mut grid = Grid {
            dir,
            child,
            pids: Vec::new(),
            _folder: folder,
        };
        grid.until("the hosts are up", |grid| {
            let log = fs::read_to_string(grid.dir.join("lab.log")).unwrap_or_default();
            assert!(log.is_empty() || log == "up\n", "{log}");
            log == "up\n"
        });
        let found = all
            .iter()
            .map(|host| (host.to_string(), grid.first_of(host)));
        grid.pids = found.collect();
        let boot = format!("sh {}/boot.sh {} 2>&1", here().display(), HOSTS.join(" "));
        // The tests of this machine are not what a host sees.
        let said = grid.sh("head", "root", &boot);
        for host in HOSTS {
            grid.start_execd(host);
            let line = format!("qconf -aattr exechost complex_values gpu={GPUS} {host}");
            grid.ok("head", "root", &line);
        }
        grid.until("the hosts report", |grid| {
            let text = grid.ok("head", "root", "qhost -F gpuos_free");
            assert!(said.status.success(), "{said:?}");
            text.matches("gpuos_free=8").count() == HOSTS.len()
        });
        grid
    }

    /// The command, with the simulated GPUs of a host that has them.
    fn place_command(dir: &Path) {
        let built = programs();
        fs::copy(built.join("gpuos"), dir.join("bin/gpuos.real")).expect("the command");
        let wrapper = format!(
            "#!/bin/sh\n[ ! -e /run/nvml/state ] || export GPUOS_NVML_STATE=/run/nvml/state\nexec {}/bin/gpuos.real \"$@\"\n",
            dir.display()
        );
        let path = dir.join("bin/gpuos");
        fs::write(&path, wrapper).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        fs::write(dir.join("hosts/n1/options"), "--type pairs-8\n").expect("a file");
        let nvml = dir.join("hosts/n2/nvml");
        ran(Command::new(built.join("gpuos-nvml"))
            .args(["create", "dgx-h100", "--dir"])
            .arg(&nvml));
        ran(Command::new("chmod").arg("-R").arg("a+rwX").arg(&nvml));
        let options = "--nvml /run/nvml/libnvidia-ml.so.1 --sysfs /nonexistent\n";
        fs::write(dir.join("hosts/n2/options"), options).expect("a file");
    }

    /// gpuos_mover, what it reads, and a key by which the hosts know each other.
    fn place_movers(dir: &Path) {
        fs::copy(daemons().join("gpuos_mover"), dir.join("bin/gpuos_mover")).expect("the daemon");
        let pfs = dir.join("pfs");
        fs::create_dir(&pfs).expect("a folder");
        let key = dir.join("munge.key");
        fs::write(&key, [7; 128]).expect("a key");
        for (path, mode) in [(&pfs, 0o700), (&key, 0o400)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
        let conf = dir.join("etc/gpuos");
        fs::create_dir_all(&conf).expect("a folder");
        let text = format!(
            "[checkpoint]\nenabled = true\nleast-seconds = 1\nended-hours = 0\nshared = \"{}\"\nshared-every = 1\n",
            pfs.display()
        );
        fs::write(conf.join("gpuos.toml"), text).expect("a file");
        let site = dir.join("etc/default/gpuos-gridengine");
        let text = fs::read_to_string(&site).expect("the site's file");
        fs::write(&site, text + "GPUOS_MOVER=/run/gpuos\n").expect("a file");
    }

    /// Starts gpuos_mover on a host.
    pub fn start_mover(&self, host: &str) {
        let script = here().join("mover.sh");
        let line = format!("sh {} {}", script.display(), self.dir.display());
        self.ok(host, "root", &line);
    }

    /// What the gpuos_mover of a host has logged.
    pub fn mover_log(&self, host: &str) -> String {
        let path = self.dir.join("hosts").join(host).join("mover/log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The first process of a host, as this process sees it.
    fn first_of(&self, host: &str) -> u32 {
        let wanted = format!("{}\0", self.dir.display());
        let named = format!("\0{host}\0");
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let mut pids = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
        let is = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words);
            words.starts_with("sh\0")
                && words.contains("host.sh\0")
                && words.contains(&wanted)
                && words.contains(&named)
        };
        pids.find(is)
            .unwrap_or_else(|| panic!("{host} has no first process"))
    }

    /// A script on a host, run as one of its users.
    pub fn sh(&self, host: &str, user: &str, script: &str) -> Output {
        let of = self.pids.iter().find(|(name, _)| name == host);
        let pid = of.unwrap_or_else(|| panic!("no host {host}")).1;
        let home = self.dir.join("home").join(user);
        Command::new("nsenter")
            .arg(format!("--target={pid}"))
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--"])
            .args([
                "setpriv",
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
            ])
            .args(["--init-groups", "sh", "-c", script])
            .env_clear()
            // Without the wrapper of Debian's, which asks a compiler for the machine's name.
            .env("PATH", "/usr/lib/gridengine:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &home)
            .env("USER", user)
            .env("LANG", "C")
            .env("SGE_ROOT", "/var/lib/gridengine")
            .env("SGE_CELL", "default")
            .env("SGE_ARCH", "lx-amd64")
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .expect("nsenter")
    }

    /// The same where it has to succeed.
    pub fn ok(&self, host: &str, user: &str, script: &str) -> String {
        let output = self.sh(host, user, script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{host} {user} {script}: {output:?}"
        );
        said
    }

    /// Submits a job of a user's; its number, with that of an array before the dot.
    pub fn qsub(&self, user: &str, options: &str, script: &str) -> String {
        let home = self.dir.join("home").join(user);
        let file = self.dir.join(format!("work/{user}.sh"));
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a script");
        let shell = if options.contains("-S ") {
            ""
        } else {
            "-S /bin/sh"
        };
        let line = format!(
            "cd {0} && qsub -terse -cwd -o {0} -e {0} {shell} {options} {1}",
            home.display(),
            file.display()
        );
        let said = self.ok("head", user, &line);
        said.trim()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_string()
    }

    /// What a job wrote, by the name of its script.
    pub fn written(&self, user: &str, job: &str) -> String {
        let home = self.dir.join("home").join(user);
        let named = |kind| home.join(format!("{user}.sh.{kind}{job}"));
        let read = |kind| fs::read_to_string(named(kind)).unwrap_or_default();
        read("o") + &read("e")
    }

    /// Whether Grid Engine does not know a job any more.
    pub fn is_gone(&self, job: &str) -> bool {
        let listed = self.sh("head", "root", &format!("qstat -j {job} 2>&1"));
        !listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("do not exist")
    }

    /// Whether no job is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.ok("head", "root", "qstat -u '*'").trim().is_empty()
    }

    /// Waits for a condition.
    pub fn until(&self, what: &str, condition: impl Fn(&Grid) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !condition(self) {
            if Instant::now() > deadline {
                let of = |line| self.pids.first().map(|_| self.sh("head", "root", line));
                panic!(
                    "not seen: {what}\n{:?}\n{:?}",
                    of("qstat -f -u '*' -explain E"),
                    of("qstat -j '*'")
                );
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Has a simulated GPU fall off the bus of a host.
    pub fn break_gpu(&self, host: &str, gpu: usize) {
        let state = self.dir.join("hosts").join(host).join("nvml/state");
        ran(Command::new(programs().join("gpuos-nvml"))
            .arg("--state")
            .arg(state)
            .args(["fault", &gpu.to_string(), "lost"]));
    }

    /// Starts the daemon of a host.
    pub fn start_execd(&self, host: &str) {
        self.ok(host, "root", "/usr/lib/gridengine/sge_execd");
    }

    /// Kills all processes of a host that have this name, or after a dot this first argument too; how many there were.
    pub fn kill(&self, host: &str, name: &str) -> usize {
        let (name, argument) = name.split_once('.').unwrap_or((name, ""));
        let script = format!(
            "for p in /proc/[0-9]*; do read -r c <$p/comm && [ \"$c\" = {name} ] && tr '\\0' ' ' <$p/cmdline | grep -q '{argument}' && kill -9 ${{p#/proc/}} && echo; done 2>/dev/null || :"
        );
        self.ok(host, "root", &script).lines().count()
    }

    /// Files of jobs that a host says to have GPUs.
    pub fn held(&self, host: &str) -> Vec<String> {
        let said = self.ok(host, "root", "ls /run/gpuos_wlm 2>/dev/null || :");
        let jobs = said.lines().filter(|name| *name != "lock");
        jobs.map(String::from).collect()
    }
}
