#!/bin/sh
# Prints the Debian archive of this machine, and its security archive: two words, by its apt sources, or by GPUOS_LAB_MIRROR where that is
# set. Exit code 1, and a sentence, where neither says it.
if [ -n "${GPUOS_LAB_MIRROR:-}" ]; then
    echo "${GPUOS_LAB_MIRROR%/} ${GPUOS_LAB_MIRROR%/}-security"
    exit
fi
found=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null | awk '
    $1 !~ /debian/ || $2 !~ /^(buster|bullseye|bookworm|trixie|forky|duke|sid|.*stable|testing)(-.*)?$/ { next }
    { sub(/\/$/, "", $1) }
    $1 ~ /security/ { if (!security) security = $1; next }
    !archive { archive = $1 }
    END { if (archive) print archive, security ? security : archive "-security" }')
[ -n "$found" ] || {
    echo 'no source below /etc/apt is the Debian archive: set GPUOS_LAB_MIRROR to a mirror of it, for example http://deb.debian.org/debian' >&2
    exit 1
}
echo "$found"
