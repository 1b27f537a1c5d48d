//! From `SCR_Init` to `SCR_Finalize`. Calls are collective: what depends on one rank's files is agreed on before any rank acts on it.

mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuos_program::{Checkpoints, Outcome, Reason, Request, Start};

use crate::mpi::World;
use crate::place;
use crate::settings::Settings;
use crate::shared;
use crate::told::Told;
use shares::chosen;

/// `SCR_FLAG_CHECKPOINT`.
pub(crate) const CHECKPOINT: i32 = 1;
/// `SCR_FLAG_OUTPUT`.
pub(crate) const OUTPUT: i32 = 2;

/// In a rank's folder of a checkpoint: the name of the dataset, and the program's files.
const NAME: &str = "name";
/// Variable of programs with a rhythm of their own.
const ASKS: &str = "GPUOS_SCR_ASK";
/// How long the request is waited for that such a program has asked for, ...
const ASKED: Duration = Duration::from_secs(4);
/// ... and how long none is asked for where it did not come.
const QUIET: Duration = Duration::from_secs(30);
const DATA: &str = "data";

/// Why a call failed. Only the rank that knows has a sentence.
pub(crate) type Problem = Option<String>;

pub(crate) struct Session {
    world: World,
    client: Checkpoints,
    prefix: PathBuf,
    /// A checkpoint to go on from that the program has not loaded yet.
    restart: Option<Restart>,
    /// There are checkpoints, and none can be loaded.
    unloadable: Option<String>,
    phase: Phase,
    /// What `SCR_Need_checkpoint` has said last, on all ranks.
    wanted: Option<Request>,
    ends: bool,
    /// It was told to end when the job will be ended.
    halts: bool,
    /// It runs without checkpoints, as its user wants.
    disabled: bool,
    /// Ranks may write files together.
    shares: bool,
    /// A checkpoint was refused as none was wanted: its files are written to where their names say.
    unwanted: bool,
    /// The checkpoint before came to nothing, as rank 0 has found when it looked last, on all ranks.
    lost: bool,
    /// It asks for each checkpoint that it begins, ...
    asks: bool,
    /// ... but not before this.
    quiet_until: Option<Instant>,
}

/// A checkpoint to go on from: its name and the folder with this rank's files.
struct Restart {
    name: Vec<u8>,
    folder: PathBuf,
}

enum Phase {
    Idle,
    Saving(Saving),
    /// Output alone, or a checkpoint that nobody wants: files are where their names say.
    Plain,
    Loading(Loading),
}

struct Loading {
    /// This rank's files.
    folder: PathBuf,
    /// Those that ranks have written together.
    together: Option<PathBuf>,
}

struct Saving {
    request: Request,
    folder: PathBuf,
    /// Files that are output too, and where to.
    output: Option<BTreeMap<PathBuf, PathBuf>>,
    /// The folder of all ranks, where these may write files together.
    together: Option<PathBuf>,
    /// Names that this rank has asked for, below the prefix.
    used: BTreeSet<PathBuf>,
}

impl Session {
    /// Joins, with all ranks; waits until all have.
    pub(crate) fn begin(settings: &Settings) -> Result<Session, Problem> {
        let world = World::find().map_err(Some)?;
        let directory = std::env::current_dir()
            .map_err(|error| format!("SCR_Init: the working directory: {error}"));
        let variable = |name: &str| std::env::var(name).ok();
        let read = directory.and_then(|directory| {
            let told = Told::read(variable, settings, &directory)?;
            Ok((directory, told))
        });
        let (directory, told) = together(&world, read)?;
        let first = world.rank().rank() == 0;
        if let Some(idle) = told.idle.as_ref().filter(|_| first) {
            eprintln!("libscr: {idle}");
        }
        let mut client = match told.enabled {
            true => Checkpoints::of(world.rank()),
            false => Checkpoints::at(None, world.rank()),
        };
        if first && !told.enabled {
            eprintln!(
                "libscr: SCR_ENABLE=0: the program runs without checkpoints, and goes on from none"
            );
        }
        let here = i32::from(client.available());
        let [some, none] = agree(&world, [here, 1 - here])?;
        if some == 1 && none == 1 {
            client = Checkpoints::at(None, world.rank());
            if here == 0 {
                eprintln!(
                    "libscr: {}: GPUOS_CHECKPOINT_DIR is not set here, and on other nodes it is: the program goes on without checkpoints",
                    world.rank()
                );
            }
        }
        let restart = together(&world, joined(&mut client))?;
        let restart = chosen(&world, restart, &told)?;
        Ok(Session {
            prefix: place::absolute(&directory, Path::new(&told.prefix)),
            world,
            client,
            restart,
            unloadable: None,
            phase: Phase::Idle,
            wanted: None,
            ends: false,
            halts: told.halts,
            disabled: !told.enabled,
            shares: told.shares,
            unwanted: false,
            lost: false,
            asks: std::env::var_os(ASKS).is_some_and(|value| value == "1"),
            quiet_until: None,
        })
    }

    /// Whether a checkpoint is wanted: as rank 0 sees it, so that all ranks see it at the same call.
    pub(crate) fn need(&mut self) -> Result<bool, Problem> {
        self.idle("SCR_Need_checkpoint")?;
        self.look()?;
        Ok(self.wanted.is_some())
    }

    /// A program with a rhythm of its own asks for what it begins, where its user wants that; rank 0 waits for the request, and the others for
    /// it. Where none comes in time, as it was too soon, that is not tried again for a while.
    fn ask(&mut self) {
        let quiet = self.quiet_until.is_some_and(|until| Instant::now() < until);
        if self.world.rank().rank() != 0 || !self.asks || quiet {
            return;
        }
        let begun = Instant::now();
        if self.client.wanted().is_some() || self.client.ask().is_err() {
            return;
        }
        while self.client.wanted().is_none() {
            if begun.elapsed() > ASKED {
                self.quiet_until = Some(Instant::now() + QUIET);
                return;
            }
            std::thread::sleep(ASKED / 200);
        }
    }

    fn look(&mut self) -> Result<(), Problem> {
        let own = match self.world.rank().rank() {
            0 => self.client.wanted(),
            _ => None,
        };
        let words = own.and_then(|request| {
            Some([i32::try_from(request.number).ok()?, request.is_end().into()])
        });
        // Nodes hear of it at slightly different moments, and all ranks are told alike.
        let is_lost = self.world.rank().rank() == 0 && self.client.lost().is_some();
        let [number, is_end] = words.unwrap_or([-1, -1]);
        let [number, is_end, lost] = agree(&self.world, [number, is_end, is_lost.into()])?;
        self.lost = lost == 1;
        self.wanted = u32::try_from(number).ok().map(|number| Request {
            number,
            reason: if is_end == 1 {
                Reason::End
            } else {
                Reason::Asked
            },
        });
        Ok(())
    }

    /// A dataset begins. A checkpoint that the job does not want now is refused, unless it is output, too.
    pub(crate) fn start(&mut self, name: Option<&[u8]>, flags: i32) -> Result<(), Problem> {
        self.idle("SCR_Start_output")?;
        if flags & (CHECKPOINT | OUTPUT) == 0 {
            return Err(Some(
                "SCR_Start_output wants SCR_FLAG_CHECKPOINT or SCR_FLAG_OUTPUT, or both".into(),
            ));
        }
        self.unwanted = false;
        if flags & CHECKPOINT == 0 || self.disabled {
            self.phase = Phase::Plain;
            return Ok(());
        }
        if self.wanted.is_none() {
            self.ask();
            self.look()?;
        }
        let Some(request) = self.wanted.take() else {
            if flags & OUTPUT == 0 {
                self.unwanted = true;
                return Err(Some(
                    "no checkpoint is wanted now, so its files are written to where their names say and not kept by gpuos: call SCR_Start_output when \
                     SCR_Need_checkpoint says so (how often is what sbatch --gpuos-checkpoint says)"
                        .into(),
                ));
            }
            self.phase = Phase::Plain;
            return Ok(());
        };
        let opened = open(&mut self.client, request.number, name);
        // It is not tried again: that can take a minute where a node's mover has ended.
        let folder =
            together(&self.world, opened).inspect_err(|_| self.client.pass_over(request.number))?;
        let output = (flags & OUTPUT != 0).then(BTreeMap::new);
        let together = match self.shares {
            true => Some(self.folder_of_all(&format!("checkpoint-{}", request.number))?),
            false => None,
        };
        self.phase = Phase::Saving(Saving {
            request,
            folder,
            output,
            together,
            used: BTreeSet::new(),
        });
        Ok(())
    }

    /// Where the program finds a file.
    pub(crate) fn route(&mut self, name: &[u8]) -> Result<Vec<u8>, Problem> {
        let given = PathBuf::from(OsString::from_vec(name.to_vec()));
        if matches!(self.phase, Phase::Idle) {
            if let Some(parent) = given.parent().filter(|_| self.unwanted) {
                fs::create_dir_all(parent).map_err(|error| {
                    format!("SCR_Route_file: cannot make {}: {error}", parent.display())
                })?;
            }
            return Ok(name.to_vec());
        }
        let directory = std::env::current_dir()
            .map_err(|error| Some(format!("SCR_Route_file: the working directory: {error}")))?;
        let file = place::absolute(&directory, &given);
        let rest = place::below(&self.prefix, &file).map_err(Some);
        let routed = match &mut self.phase {
            Phase::Idle => given,
            Phase::Plain => file,
            Phase::Saving(saving) => {
                let rest = rest?;
                let routed = match &saving.together {
                    Some(together) => together.join(&rest),
                    None => saving.folder.join(&rest),
                };
                saving.used.insert(rest);
                if let Some(output) = &mut saving.output {
                    output.insert(routed.clone(), file);
                }
                routed
            }
            Phase::Loading(Loading { folder, together }) => {
                let below = |folder: &Path| {
                    let rest = rest.as_ref().ok()?;
                    Some(folder.join(rest)).filter(|path| path.exists())
                };
                let whole = below(folder).or_else(|| below(together.as_deref()?));
                let named = |folder: &Path| place::named(folder, given.file_name()?);
                let found = whole.or_else(|| named(folder));
                let found = found.or_else(|| named(together.as_deref()?));
                let found = found.filter(|path| fs::File::open(path).is_ok());
                return match found {
                    Some(path) => Ok(path.into_os_string().into_vec()),
                    None => Err(Some(format!(
                        "SCR_Route_file: this rank's part of the checkpoint has no file {}",
                        given.display()
                    ))),
                };
            }
        };
        if let Some(parent) = routed.parent() {
            fs::create_dir_all(parent).map_err(|error| {
                Some(format!(
                    "SCR_Route_file: cannot make {}: {error}",
                    parent.display()
                ))
            })?;
        }
        Ok(routed.into_os_string().into_vec())
    }

    /// A dataset is complete on this rank; `valid`: it was written without error.
    pub(crate) fn complete(&mut self, valid: bool) -> Result<(), Problem> {
        let written = if valid {
            Ok(())
        } else {
            Err("this rank could not write its files, says the program".to_string())
        };
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Plain => together(&self.world, written),
            Phase::Saving(saving) => self.save(saving, written),
            other => {
                self.phase = other;
                Err(Some(
                    "SCR_Complete_output wants an SCR_Start_output before it".into(),
                ))
            }
        }
    }

    /// Without all ranks nobody says that he is ready: the request stays, and the program is asked again.
    fn save(&mut self, saving: Saving, written: Result<(), String>) -> Result<(), Problem> {
        let Saving {
            request,
            folder,
            mut output,
            together: all,
            used,
        } = saving;
        if let Err(why) = together(&self.world, written) {
            return Err(self.seem_to_share(&used, all.is_some())?.or(why));
        }
        if let Some(all) = &all {
            let own = self.taken(all, &folder, &used)?;
            // Of a file of several ranks one brings it to its name.
            if let Some(output) = &mut output {
                output.retain(|from, _| {
                    let rest = from.strip_prefix(all);
                    rest.is_ok_and(|rest| own.contains(rest))
                });
            }
        }
        together(&self.world, publish(output.unwrap_or_default()))?;
        if let Some(all) = &all {
            self.removed(all);
        }
        let ready = self
            .client
            .ready(request.number)
            .map_err(|error| error.to_string());
        together(&self.world, ready)?;
        if request.is_end() {
            let end = match self.client.wait(request.number, None) {
                Ok(Outcome::Committed) => Ok(()),
                Ok(Outcome::Failed(why)) => Err(why),
                Ok(Outcome::Pending) => Err("it has not ended".into()),
                Err(error) => Err(error.to_string()),
            };
            let end = end.map_err(|why| format!("checkpoint {}: {why}", request.number));
            together(&self.world, end)?;
            self.ends = true;
        } else if std::mem::take(&mut self.lost) {
            // This one is saved. Which one came to nothing, and why, rank 0 has said when it was found.
            return Err(None);
        }
        Ok(())
    }

    /// The name of the checkpoint that can be loaded.
    pub(crate) fn restart(&self) -> Result<Option<&[u8]>, Problem> {
        self.idle("SCR_Have_restart")?;
        if let Some(why) = &self.unloadable {
            return Err(Some(why.clone()));
        }
        Ok(self.restart.as_ref().map(|restart| &restart.name[..]))
    }

    /// Loading begins; the name of the checkpoint.
    pub(crate) fn load(&mut self) -> Result<Vec<u8>, Problem> {
        self.idle("SCR_Start_restart")?;
        let Some(restart) = self.restart.take() else {
            return Err(Some(
                "SCR_Start_restart: there is no checkpoint to load, or it was loaded".into(),
            ));
        };
        let [has] = agree(&self.world, [shared::has(&restart.folder).into()])?;
        let mut all = None;
        if has == 1 {
            let folder = self.folder_of_all("restart")?;
            let brought = shared::bring(&folder, &restart.folder).map_err(|error| {
                format!(
                    "SCR_Start_restart: files that ranks share, in {}: {error}",
                    folder.display()
                )
            });
            together(&self.world, brought)?;
            all = Some(folder);
        }
        self.phase = Phase::Loading(Loading {
            folder: restart.folder,
            together: all,
        });
        Ok(restart.name)
    }

    /// Loading has ended. What a rank could not load is refused by all, and the one before takes its place.
    pub(crate) fn loaded(&mut self, valid: bool) -> Result<(), Problem> {
        let loading = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Loading(loading) => loading,
            other => {
                self.phase = other;
                return Err(Some(
                    "SCR_Complete_restart wants an SCR_Start_restart before it".into(),
                ));
            }
        };
        let [refused] = agree(&self.world, [(!valid).into()])?;
        if let Some(together) = loading.together {
            self.removed(&together);
        }
        if refused == 0 {
            return Ok(());
        }
        let said = match valid {
            true => "another rank could not load it",
            false => "SCR_Complete_restart(0)",
        };
        let refused = self.client.refuse(said).map_err(|error| error.to_string());
        let again = together(&self.world, refused)
            .and_then(|()| together(&self.world, joined(&mut self.client)));
        match again {
            Ok(restart) => {
                self.restart = restart;
                Err((!valid).then(|| {
                    "this rank could not load the checkpoint, says the program: it is refused, and SCR_Have_restart has the one before".into()
                }))
            }
            Err(why) => {
                // A program that began from the start would do its work again.
                let none =
                    "no checkpoint can be loaded; the reason is on another rank's standard error"
                        .to_string();
                self.unloadable = Some(why.clone().unwrap_or(none));
                Err(why)
            }
        }
    }

    /// Whether the job will be ended, and its last checkpoint exists.
    pub(crate) fn ends(&self) -> Result<bool, Problem> {
        self.idle("SCR_Should_exit")?;
        Ok(self.ends && self.halts)
    }

    fn idle(&self, call: &str) -> Result<(), Problem> {
        match self.phase {
            Phase::Idle => Ok(()),
            _ => Err(Some(format!(
                "{call} stands between a Start and its Complete"
            ))),
        }
    }
}

/// Joins; the checkpoint to go on from.
fn joined(client: &mut Checkpoints) -> Result<Option<Restart>, String> {
    match client.join(None).map_err(|error| error.to_string())? {
        Start::New => Ok(None),
        Start::Failed(why) => Err(why),
        Start::Restore { number, folder } => {
            let name = fs::read(folder.join(NAME));
            Ok(Some(Restart {
                name: name.unwrap_or_else(|_| unnamed(number)),
                folder: folder.join(DATA),
            }))
        }
    }
}

/// The highest numbers of all ranks.
fn agree<const N: usize>(world: &World, own: [i32; N]) -> Result<[i32; N], Problem> {
    world.highest(own).map_err(Some)
}

/// What this rank has, if all ranks have it.
fn together<T>(world: &World, own: Result<T, String>) -> Result<T, Problem> {
    let [failed] = agree(world, [own.is_err().into()])?;
    match own {
        Err(why) => Err(Some(why)),
        Ok(_) if failed == 1 => Err(None),
        Ok(value) => Ok(value),
    }
}

/// An empty folder for this rank's files, with the name of the dataset beside it.
fn open(client: &mut Checkpoints, number: u32, name: Option<&[u8]>) -> Result<PathBuf, String> {
    let folder = client.folder(number).map_err(|error| error.to_string())?;
    let data = folder.join(DATA);
    let made = || {
        // What is there is of a try that not all ranks have completed.
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        fs::create_dir(&data)?;
        fs::write(
            folder.join(NAME),
            name.map_or_else(|| unnamed(number), <[u8]>::to_vec),
        )
    };
    made().map_err(|error| {
        format!(
            "SCR_Start_output: cannot begin in {}: {error}",
            folder.display()
        )
    })?;
    Ok(data)
}

fn unnamed(number: u32) -> Vec<u8> {
    format!("checkpoint.{number}").into_bytes()
}

/// Copies files of a checkpoint that is output, too, to where their names say; each appears whole.
fn publish(output: BTreeMap<PathBuf, PathBuf>) -> Result<(), String> {
    for (from, to) in output {
        let mut temporary = to.clone().into_os_string();
        temporary.push(".gpuos");
        let copied = || {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&from, &temporary)?;
            fs::rename(&temporary, &to)
        };
        copied().map_err(|error| {
            format!(
                "SCR_Complete_output: cannot copy {} to {}: {error}",
                from.display(),
                to.display()
            )
        })?;
    }
    Ok(())
}
