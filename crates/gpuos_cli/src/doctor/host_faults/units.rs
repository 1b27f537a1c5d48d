//! Units of systemd.

use super::{LEGACY, Node, absent, running, seen, silent, sound, unit};

#[test]
fn a_unit_that_is_missing_is_named() {
    let disabled = |name: &str| unit(name, "loaded", "inactive", "dead", "disabled");
    let keep = |node: Node, all: &str| node.programs(&format!("1 init\n{all}"));
    let munged = "2 /usr/sbin/munged\n";
    let both = "2 /usr/sbin/munged\n3 /usr/sbin/slurmd\n";
    let head = || sound().set("SlurmctldHost=head", "SlurmctldHost=n1(10.0.0.1)");
    seen(vec![
        (
            "no slurmd",
            keep(sound().unit(1, absent("slurmd")), munged),
            &[
                "fail units: slurmd does not run here: there is no unit slurmd.service",
                "install slurmd",
            ],
        ),
        (
            "slurmd not enabled",
            keep(sound().unit(1, disabled("slurmd")), munged),
            &[
                "fail units",
                "slurmd.service is not enabled",
                "`systemctl enable --now slurmd`",
            ],
        ),
        (
            "slurmd masked",
            keep(
                sound().unit(1, unit("slurmd", "masked", "inactive", "dead", "masked")),
                munged,
            ),
            &[
                "fail units",
                "slurmd.service is masked",
                "`systemctl unmask slurmd`",
            ],
        ),
        (
            "slurmd failed",
            keep(
                sound().unit(1, unit("slurmd", "loaded", "failed", "failed", "enabled")),
                munged,
            ),
            &[
                "fail units",
                "slurmd.service failed (exit-code)",
                "`journalctl -u slurmd`",
            ],
        ),
        (
            "slurmd was stopped",
            keep(
                sound().unit(1, unit("slurmd", "loaded", "inactive", "dead", "enabled")),
                munged,
            ),
            &[
                "fail units",
                "slurmd.service is inactive",
                "`systemctl start slurmd`",
            ],
        ),
        (
            "slurmd's unit is broken",
            keep(
                sound().unit(1, unit("slurmd", "bad-setting", "inactive", "dead", "bad")),
                munged,
            ),
            &[
                "fail units",
                "cannot be loaded (bad-setting)",
                "daemon-reload",
            ],
        ),
        (
            "no slurmctld",
            keep(head(), both),
            &[
                "fail units: slurmctld does not run here: there is no unit slurmctld.service",
                "SlurmctldHost",
            ],
        ),
        (
            "slurmctld not enabled",
            keep(head().unit(2, disabled("slurmctld")), both),
            &["fail units", "`systemctl enable --now slurmctld`"],
        ),
        (
            "no munge",
            keep(sound().unit(3, absent("munge")), "3 slurmd\n"),
            &[
                "fail units: munged does not run here: there is no unit munge.service",
                "munge.key",
            ],
        ),
        (
            "gpuosd not installed",
            keep(sound().unit(0, absent("gpuosd")), both),
            &[
                "warn gpuosd",
                "nobody watches the GPUs",
                "there is no unit gpuosd.service",
                "make install",
            ],
        ),
        (
            "gpuosd not enabled",
            keep(sound().unit(0, disabled("gpuosd")), both),
            &[
                "warn gpuosd",
                "gpuosd.service is not enabled",
                "`systemctl enable --now gpuosd`",
            ],
        ),
        (
            "gpuosd masked",
            keep(
                sound().unit(0, unit("gpuosd", "masked", "inactive", "dead", "masked")),
                both,
            ),
            &[
                "warn gpuosd",
                "gpuosd.service is masked",
                "`systemctl unmask gpuosd`",
            ],
        ),
        (
            "gpuosd ends again and again",
            keep(
                sound().unit(
                    0,
                    unit("gpuosd", "loaded", "activating", "auto-restart", "enabled"),
                ),
                both,
            ),
            &[
                "warn gpuosd",
                "gpuosd.service failed",
                "`journalctl -u gpuosd`",
            ],
        ),
        (
            "gpuosd only until the next boot",
            keep(
                sound().unit(0, unit("gpuosd", "loaded", "active", "running", "disabled")),
                both,
            ),
            &[
                "warn units: gpuosd runs, and its unit gpuosd.service is not enabled",
                "`systemctl enable gpuosd`",
            ],
        ),
        (
            "slurmd without Delegate",
            keep(
                sound().unit(1, running("slurmd").replace("Delegate=yes", "Delegate=no")),
                both,
            ),
            &[
                "warn units: slurmd.service has no Delegate=yes",
                "`systemctl edit slurmd`",
                "Delegate=yes, then",
            ],
        ),
    ]);
    let undelegated = running("slurmd").replace("Delegate=yes", "Delegate=no");
    let node = keep(sound().unit(1, undelegated), both);
    silent(vec![
        ("version 1 without Delegate", node.clone().mounts(LEGACY)),
        ("systemd ignored", node.groups("IgnoreSystemd=yes\n")),
    ]);
    // A systemctl that cannot reach its systemd says nothing.
    let mut mute = sound().unit(1, absent("slurmd"));
    mute.mute = true;
    silent(vec![("systemd silent", mute)]);
}
