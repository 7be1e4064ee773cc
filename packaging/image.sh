#!/bin/bash
# Makes the image of tsugiki-kube, with Tsugiki's programs for the node, as an OCI archive:
#   packaging/image.sh BIN OUT NAME
# BIN has the binaries, as make build and make kube leave them. NAME is such as tsugiki-kube:0.1. The
# image has static programs alone, and is made of no other one, so nothing is fetched. ctr images
# import, skopeo copy oci-archive:FILE docker://NAME, podman load and docker load read the archive. Of the same
# binaries it is always the same. It is of this machine's architecture, as the C programs are: one of another
# is made on a machine of that, and a list of both in the registry.
set -euo pipefail
umask 022
source=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "$1") name=$3
mkdir -p "$2"
out=$(realpath "$2")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root prefix=opt/tsugiki
mkdir -p "$root" "$work/image/blobs/sha256"
make -s --no-print-directory -C "$source" install-programs BIN="$bin" DESTDIR="$root" PREFIX="/$prefix"
install -t "$root" "$bin"/kube/tsugiki-{kube,nri}
strip --strip-unneeded "$root"/tsugiki-{kube,nri} "$root/$prefix"/bin/*

# Packs a folder's contents, always in the same way.
pack() { tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - .; }

# Puts standard input among the image's blobs. digest and size are those of the last one.
blob() {
	cat >"$work/blob"
	digest=$(sha256sum "$work/blob" | cut -d' ' -f1) size=$(stat -c %s "$work/blob")
	mv "$work/blob" "$work/image/blobs/sha256/$digest"
}

# "docker load" of old and new versions, and whoever knows OCI, agree about this full name.
full=$name
[[ $name == */* ]] || full=docker.io/library/$name
blob < <(pack "$root")
layer=$digest layer_size=$size
blob <<END
{"architecture":"$(go env GOARCH)","os":"linux","config":{"Entrypoint":["/tsugiki-kube"]},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
END
config=$digest config_size=$size
blob <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$config_size},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:$layer","size":$layer_size}]}
END
cat >"$work/image/index.json" <<END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$digest","size":$size,"annotations":{"io.containerd.image.name":"$full","org.opencontainers.image.ref.name":"${name##*:}"},"platform":{"architecture":"$(go env GOARCH)","os":"linux"}}]}
END
echo '{"imageLayoutVersion":"1.0.0"}' >"$work/image/oci-layout"
cat >"$work/image/manifest.json" <<END
[{"Config":"blobs/sha256/$config","RepoTags":["$name"],"Layers":["blobs/sha256/$layer"]}]
END
file=$out/$(tr :/ _- <<<"${name##*/}")_$(go env GOARCH).tar
pack "$work/image" >"$file"
echo "$file"
