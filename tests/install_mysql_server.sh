#!/usr/bin/env bash
# Puts the MySQL server of Debian's unstable into the environment given as the first argument, with the libraries that
# it was built for, so that it runs on an older Debian and changes nothing else on the machine.
set -euo pipefail
environment=$(realpath "$1")
command -v apt-get >/dev/null || { echo "apt-get is not there: install a MySQL server 8.0 or newer by hand"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/lists/partial "$work"/cache/archives/partial "$environment/mysql"
touch "$work/status"
# The machine's own mirror of Debian.
mirror=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Label: Debian' 'Identifier: Packages' | head -n 1)
if [ -z "$mirror" ]; then
  apt-get update -qq
  mirror=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Label: Debian' 'Identifier: Packages' | head -n 1)
fi
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror sid main" > "$work/sources.list"
cat > "$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
END
chmod 755 "$work"
export APT_CONFIG="$work/apt.conf"
apt-get update -qq
apt-get install -y -qq --download-only --no-install-recommends mysql-server-core >/dev/null
for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$environment/mysql"; done
cat > "$environment/bin/mysqld" <<END
#!/usr/bin/env bash
root="$environment/mysql/usr"
libraries="\$root/lib/x86_64-linux-gnu:\$root/lib/mysql/private:\$root/lib/mysql"
first=()
if [ "\${1:-}" = --no-defaults ]; then first=(--no-defaults); shift; fi
exec "\$root/lib64/ld-linux-x86-64.so.2" --library-path "\$libraries" "\$root/sbin/mysqld" "\${first[@]}" \\
  --lc-messages-dir="\$root/share/mysql" --character-sets-dir="\$root/share/mysql/charsets" \\
  --plugin-dir="\$root/lib/mysql/plugin" --secure-file-priv= "\$@"
END
chmod +x "$environment/bin/mysqld"
"$environment/bin/mysqld" --no-defaults --version
