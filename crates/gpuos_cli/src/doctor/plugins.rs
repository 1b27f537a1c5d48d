//! The plugin files: whether those who load them find them, may read them, and could load them. They are read as the
//! loader would, not loaded.

use std::path::{Path, PathBuf};

use gpuos_host::libraries::Libraries;
use gpuos_host::slurm::Running;
use gpuos_host::slurm::releases;
use gpuos_host::{Kind, Machine, User, elf};

use super::Context;
use super::about::{self, About};
use super::findings::Findings;
use super::plugstack;

/// A plugin, and the symbols without which Slurm does not take it.
struct Wanted {
    name: About,
    file: &'static str,
    symbols: &'static [&'static str],
}

static PLUGINS: [Wanted; 4] = [
    Wanted {
        name: about::SELECT_GPUOS,
        file: "select_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "plugin_id",
            "init",
            "fini",
            "select_p_job_test",
        ],
    },
    Wanted {
        name: about::SPANK_GPUOS,
        file: "spank_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "slurm_spank_init",
        ],
    },
    Wanted {
        name: about::JOB_SUBMIT_GPUOS,
        file: "job_submit_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "job_submit",
            "job_modify",
        ],
    },
    Wanted {
        name: about::GRES_GPUOS,
        file: "gres_gpuos.so",
        symbols: &["plugin_name", "plugin_type", "plugin_version", "init"],
    },
];

/// A SPANK plugin with one of these makes slurmd fork for every job.
const COSTLY: &[&str] = &["slurm_spank_job_prolog", "slurm_spank_job_epilog"];

/// What follows where slurmctld does not get one of its plugins.
const ENDS: &str = "slurmctld ends at its start with a plugin that it cannot load";

/// `PluginDir`; where slurm.conf does not say it, the folder with Slurm's own plugins.
pub fn folders(machine: &dyn Machine, settings: &Running) -> Vec<PathBuf> {
    let dirs = settings.plugin_dirs();
    if !dirs.is_empty() {
        return dirs;
    }
    let mut prefixes = vec![PathBuf::from("/usr"), PathBuf::from("/usr/local")];
    let own = machine.find("scontrol");
    let own = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    prefixes.splice(0..0, own.map(Path::to_path_buf));
    let arch = std::env::consts::ARCH;
    let below = [
        format!("lib/{arch}-linux-gnu/slurm-wlm"),
        format!("lib/{arch}-linux-gnu/slurm"),
        "lib64/slurm".into(),
        "lib/slurm".into(),
        "lib/slurm-wlm".into(),
    ];
    let all = prefixes
        .iter()
        .flat_map(|prefix| below.iter().map(|sub| prefix.join(sub)));
    let mut all = all.filter(|dir| machine.stat(&dir.join("select_cons_tres.so")).is_ok());
    all.next().into_iter().collect()
}

/// The first file of that name in the folders.
pub fn find(machine: &dyn Machine, dirs: &[PathBuf], file: &str) -> Option<PathBuf> {
    let mut all = dirs.iter().map(|dir| dir.join(file));
    all.find(|path| machine.stat(path).is_ok())
}

/// Folders as slurm.conf writes them.
pub fn shown(dirs: &[PathBuf]) -> String {
    let all: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    all.join(":")
}

pub fn check(look: &Context, findings: &mut Findings) {
    let machine = look.machine;
    let dirs = folders(machine, look.settings);
    let mut told: Vec<PathBuf> = Vec::new();
    // What slurm.conf says now counts at the next start, whatever slurmctld runs with.
    let file = look.conf.and_then(|conf| conf.get("plugindir"));
    let next = file.map_or(Vec::new(), |setting| {
        let all = setting.value.split(':').filter(|dir| !dir.is_empty());
        all.map(PathBuf::from).collect()
    });
    for dir in dirs.iter().chain(&next) {
        if told.contains(dir) {
            continue;
        }
        told.push(dir.clone());
        folder(look, dir, findings);
    }
    let libraries = Libraries::of(machine);
    let mut of: Vec<(About, String)> = Vec::new();
    for wanted in &PLUGINS {
        let from_plugstack = match wanted.file {
            "spank_gpuos.so" => plugstack::spank_file(look),
            _ => None,
        };
        let place = match from_plugstack.filter(|path| path.is_absolute()) {
            Some(path) => Some(path).filter(|path| machine.stat(path).is_ok()),
            None => None,
        };
        let place = place.or_else(|| {
            find(machine, &dirs, wanted.file).or_else(|| dangling(machine, &dirs, wanted.file))
        });
        match place {
            Some(path) => of.extend(one(look, wanted, &path, &libraries, findings)),
            None => missing(look, wanted, &dirs, findings),
        }
    }
    let newest = of.iter().map(|(_, release)| release.as_str()).max();
    let old = of
        .iter()
        .find(|(_, release)| Some(release.as_str()) != newest);
    if let (Some((name, release)), Some(newest)) = (old, newest) {
        findings
            .warn(
                about::PLUGINS,
                format!("{name} is of gpuos {release}, and others are of gpuos {newest}"),
                "install all plugins of one build (`make install`), and restart Slurm's daemons",
            )
            .why("they share their notes, their files and gpuosd's protocol, which differ between releases");
    }
    stock(look, &dirs, findings);
}

/// Whether this plugin is configured to be loaded.
fn needed(look: &Context, wanted: &Wanted) -> bool {
    let settings = look.settings;
    match wanted.file {
        "select_gpuos.so" => look.selected(),
        "job_submit_gpuos.so" => settings
            .list("JobSubmitPlugins")
            .iter()
            .any(|name| matches!(*name, "gpuos" | "job_submit/gpuos")),
        "gres_gpuos.so" => settings.list("GresTypes").contains(&"gpuos"),
        _ => plugstack::spank_file(look).is_some(),
    }
}

fn folder(look: &Context, dir: &Path, findings: &mut Findings) {
    let place = look.place("plugindir");
    let fix =
        "correct PluginDir, or install the plugins there (`make install`), then start slurmctld";
    let message = match look.machine.stat(dir) {
        Err(error) => format!(
            "PluginDir names {}, which cannot be used: {error}",
            dir.display()
        ),
        Ok(stat) if stat.kind != Kind::Folder => {
            format!("PluginDir names {}, which is no folder", dir.display())
        }
        Ok(_) => return,
    };
    findings
        .fail(about::PLUGIN_DIR, message, fix)
        .at(place)
        .why("every folder of PluginDir has to be there: slurmctld, slurmd and Slurm's commands end without");
}

/// A link that leads nowhere is no file, and not nothing either.
fn dangling(machine: &dyn Machine, dirs: &[PathBuf], file: &str) -> Option<PathBuf> {
    let mut all = dirs.iter().map(|dir| dir.join(file));
    all.find(|path| machine.link(path).is_some())
}

fn missing(look: &Context, wanted: &Wanted, dirs: &[PathBuf], findings: &mut Findings) {
    // Its GRES is for sites with divided GPUs; `slices` tells of one that is missing there.
    if wanted.file == "gres_gpuos.so" && !needed(look, wanted) {
        return;
    }
    let check = findings.fail(
        wanted.name,
        format!("no {} in PluginDir ({}) that can be read here", wanted.file, shown(dirs)),
        "install the plugins of gpuos there, or add their directory in front: PluginDir=/usr/lib/gpuos:…",
    );
    check.at(look.place("plugindir"));
    if needed(look, wanted) && wanted.file != "spank_gpuos.so" {
        check.why(ENDS);
    }
}

/// Looks at a file; answers the gpuos that it is of.
fn one(
    look: &Context,
    wanted: &Wanted,
    path: &Path,
    libraries: &Libraries,
    findings: &mut Findings,
) -> Option<(About, String)> {
    let shown = path.display();
    let mut why = match (needed(look, wanted), wanted.file) {
        (false, _) => "it is not loaded by this slurm.conf; it would not load if it were",
        (true, "spank_gpuos.so") => {
            "sbatch, srun and slurmd go on without the options where plugstack.conf says optional, and end where it says required"
        }
        (true, _) => ENDS,
    };
    let reinstall = format!(
        "install the {} that was built for this machine",
        wanted.file
    );
    let mut fail = |message: String, fix: &str| {
        if message.ends_with(elf::MAY_LOAD) {
            why = "it is not the file that was built: copying it was broken off";
        }
        findings
            .fail(wanted.name, message, fix)
            .at(shown.to_string())
            .why(why);
    };
    let machine = look.machine;
    match machine.stat(path) {
        Ok(stat) if stat.kind == Kind::File => {
            if stat.mode & 0o002 != 0 {
                fail(
                    format!(
                        "{shown} may be written by all users (mode {:o}), and runs in slurmctld",
                        stat.mode
                    ),
                    &format!("chmod o-w {shown}"),
                );
            }
        }
        Ok(_) => {
            fail(format!("{shown} is no file"), &reinstall);
            return None;
        }
        Err(_) => {
            fail(format!("{shown} is a link that leads nowhere"), &reinstall);
            return None;
        }
    }
    let all = User::anybody();
    for user in look.user.into_iter().chain([&all]) {
        if let Some(kept) = user.unreadable_part(machine, path) {
            let what = match kept == path {
                true => String::new(),
                false => format!(": {} is closed", kept.display()),
            };
            let who = match user.name.as_str() {
                "all users" => "all users, who load it with Slurm's commands".to_string(),
                name => format!("SlurmUser {name}"),
            };
            fail(
                format!("{shown} cannot be read by {who}{what}"),
                &format!("chmod a+r {shown}, and a+rx for the folders above it"),
            );
            break;
        }
    }
    let bytes = match machine.read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            fail(
                format!("{shown} cannot be read here: {error}"),
                "run `gpuos doctor` as root",
            );
            return None;
        }
    };
    let plugin = match elf::read(&bytes) {
        Ok(plugin) => plugin,
        Err(what) => {
            fail(format!("{shown} {what}"), &reinstall);
            return None;
        }
    };
    if plugin.arch != std::env::consts::ARCH {
        let message = format!(
            "{shown} is for {}, and this machine is {}",
            plugin.arch,
            std::env::consts::ARCH
        );
        fail(message, &reinstall);
        return None;
    }
    let symbols = wanted.symbols.iter().copied();
    let missing: Vec<&str> = symbols
        .filter(|symbol| !plugin.exports.contains(*symbol))
        .collect();
    if !missing.is_empty() {
        fail(
            format!("{shown} does not export {}", missing.join(", ")),
            &reinstall,
        );
        return None;
    }
    if let Some(what) = libraries.refuses(&plugin) {
        let fix = "build gpuos on this distribution or an older one, or on this machine: a program runs on the glibc \
                   that it was built on and on newer ones";
        fail(format!("{shown} {what}"), fix);
        return None;
    }
    if let Some(costly) = COSTLY
        .iter()
        .find(|symbol| plugin.exports.contains(**symbol))
    {
        let message = format!("{shown} exports {costly}, which makes slurmd fork for every job");
        findings.warn(wanted.name, message, reinstall);
        return None;
    }
    if !findings.found(wanted.name) {
        let release = plugin
            .gpuos
            .as_ref()
            .map_or(String::new(), |of| format!(", gpuos {of}"));
        findings.ok(wanted.name, format!("{shown}, {}{release}", plugin.arch));
    }
    Some((wanted.name, plugin.gpuos?))
}

/// Slurm's own plugin, which select/gpuos wraps.
fn stock(look: &Context, dirs: &[PathBuf], findings: &mut Findings) {
    if !look.selected() || dirs.is_empty() {
        return;
    }
    let Some(path) = find(look.machine, dirs, "select_cons_tres.so") else {
        findings
            .fail(
                about::SELECT_CONS_TRES,
                "select_cons_tres.so, which select/gpuos wraps, is in no directory of PluginDir",
                "add Slurm's own plugin directory to PluginDir, after that of gpuos",
            )
            .at(look.place("plugindir"))
            .why(ENDS);
        return;
    };
    let bytes = look.machine.read(&path).unwrap_or_default();
    let own = elf::read(&bytes).ok().and_then(|plugin| plugin.slurm);
    let ctld = look
        .settings
        .get("SLURM_VERSION")
        .map(|_| look.settings.release());
    let ctld = ctld.map_or_else(
        || installed(look.machine),
        |release| Some(release.to_string()),
    );
    let ctld_numbers = ctld.as_deref().and_then(releases::numbers);
    if let (Some(own), Some(wanted), Some(release)) = (own, ctld_numbers, ctld)
        && own != wanted
    {
        let own = format!("{}.{:02}.{}", own[0], own[1], own[2]);
        findings
            .fail(
                about::SELECT_CONS_TRES,
                format!(
                    "{} is of Slurm {own}, and slurmctld is {release}",
                    path.display()
                ),
                "name the plugin directory of this Slurm in PluginDir, after that of gpuos",
            )
            .at(look.place("plugindir"))
            .why("Slurm loads only plugins of its own release");
    }
}

/// The release of the installed Slurm, where slurmctld does not tell its own.
pub fn installed(machine: &dyn Machine) -> Option<String> {
    let output = machine.run("scontrol", &["-V"]).ok().filter(|out| out.ok)?;
    let release = output.stdout.split_whitespace().last()?;
    releases::numbers(release).map(|_| release.to_string())
}
