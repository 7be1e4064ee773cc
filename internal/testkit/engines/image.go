package engines

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/tsugiki/tsugiki/internal/bundle"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ImageName is what the engines know the image by.
const ImageName = "localhost/tsugiki:test"

// Image is an archive that all of the engines can load, as docker save makes it:
// busybox (static), nginx, redis-server, redis-cli and redis-benchmark (dynamic), denied, interrupted
// and raw, see testdata. Without arguments its containers do nothing until they are stopped.
type Image struct {
	path    string // as docker save makes it
	oci     string // as the image specification has it; empty: there is none
	layer   []byte
	program string // its containers run this; empty: see above
}

// archive is the path of the image's archive.
func (i *Image) archive(oci bool) string {
	if oci && i.oci != "" {
		return i.oci
	}
	return i.path
}

// Commands of the image.
var (
	// Nginx answers at port 80 and writes "CLIENT STATUS URI" to its log.
	Nginx = []string{"nginx", "-e", "stderr", "-c", "/etc/nginx.conf"}
	// Redis answers at port 6379.
	Redis = []string{"redis-server", "--port", "6379", "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"}
	idle  = []string{"tail", "-f", "/dev/null"}
)

// imageFiles are its small files.
var imageFiles = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
	"etc/services":      "http 80/tcp\nredis 6379/tcp\n",
	"srv/index.html":    "hello\n",
	"etc/nginx.conf": `daemon off;
user root;
worker_processes 2;
pid /tmp/nginx.pid;
error_log stderr info;
events { }
http {
	log_format peer '$remote_addr $status $request_uri';
	access_log /dev/stdout peer;
	client_body_temp_path /tmp/body;
	proxy_temp_path /tmp/proxy;
	fastcgi_temp_path /tmp/fastcgi;
	uwsgi_temp_path /tmp/uwsgi;
	scgi_temp_path /tmp/scgi;
	server {
		listen 80;
		root /srv;
	}
}
`,
}

var imageFolders = []string{"bin", "dev", "etc", "lib", "lib64", "proc", "run", "srv", "sys", "tmp", "usr", "usr/bin", "var"}

// imagePrograms are those of the machine that it has, where their packages put
// them.
var imagePrograms = []string{"nginx", "redis-server", "redis-cli", "redis-benchmark"}

//go:embed testdata/*.c
var sources embed.FS

// BuildImage makes the image's archive in a folder. Build it once and share it.
func BuildImage(dir string) (*Image, error) {
	if err := testkit.Programs(append([]string{"busybox", "gcc", "ldd"}, imagePrograms...)...); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, name := range []string{"denied", "interrupted", "raw"} {
		source, err := sources.ReadFile("testdata/" + name + ".c")
		if err != nil {
			return nil, err
		}
		files["usr/bin/"+name] = filepath.Join(dir, name)
		compile := exec.Command("gcc", "-static", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o", filepath.Join(dir, name), "-x", "c", "-")
		compile.Stdin = bytes.NewReader(source)
		if out, err := compile.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	if err := collect(files); err != nil {
		return nil, err
	}
	layer, err := makeLayer(files)
	if err != nil {
		return nil, err
	}
	i := &Image{path: filepath.Join(dir, "image.tar"), layer: layer}
	return i, i.write(ImageName, nil)
}

// Saying makes, in a folder, an image of another name that has words in all places for
// them: they are labels of its configuration, and annotations of its manifest where the
// archive's form has those.
func (i *Image) Saying(dir, name string, words map[string]string) (*Image, error) {
	s := &Image{path: filepath.Join(dir, "saying.tar"), oci: filepath.Join(dir, "saying-oci.tar"), layer: i.layer}
	if err := s.write(name, words); err != nil {
		return nil, err
	}
	return s, s.writeOCI(name, words)
}

// ProgramImage makes, in a folder, an image with static programs alone. Its containers run the first one.
func ProgramImage(dir, name, program string, others ...string) (*Image, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	base := filepath.Base(program)
	for _, p := range append([]string{program}, others...) {
		text, err := os.ReadFile(p)
		if err == nil {
			err = add(w, filepath.Base(p), 0o755, text)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	i := &Image{path: filepath.Join(dir, base+".tar"), layer: layer.Bytes(), program: "/" + base}
	return i, i.write(name, nil)
}

// collect finds the programs and their libraries: files of the image by those of
// the machine.
func collect(files map[string]string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	files["bin/busybox"] = busybox
	for _, name := range imagePrograms {
		path, err := exec.LookPath(name)
		if err != nil {
			return err
		}
		files["usr/bin/"+name] = path
		libraries, err := bundle.Libraries(path)
		if err != nil {
			return err
		}
		for _, library := range libraries {
			files[library[1:]] = library
		}
	}
	return nil
}

// makeLayer makes the archive of the image's files.
func makeLayer(files map[string]string) ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, f := range imageFolders {
		mode := int64(0o755)
		if f == "tmp" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: f + "/", Mode: mode}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(imageFiles)) {
		if err := add(w, name, 0o644, []byte(imageFiles[name])); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		if err := add(w, name, 0o755, text); err != nil {
			return nil, err
		}
	}
	applets, err := exec.Command("busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	for name := range bytes.Lines(applets) {
		link := &tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + string(bytes.TrimSpace(name)), Linkname: "busybox", Mode: 0o777}
		if link.Name == "bin/busybox" {
			continue
		}
		if err := w.WriteHeader(link); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), w.Close()
}

func add(w *tar.Writer, name string, mode int64, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}

// file is one of an archive's.
type file struct {
	name string
	text []byte
}

func writeArchive(path string, files ...file) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, part := range files {
		if err := add(w, part.name, 0o644, part.text); err != nil {
			return err
		}
	}
	return w.Close()
}

// config is the configuration of an image with one layer.
func (i *Image) config(labels map[string]string) ([]byte, error) {
	config := map[string]any{"Cmd": idle, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "Labels": labels}
	if i.program != "" {
		config = map[string]any{"Entrypoint": []string{i.program}, "Labels": labels}
	}
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       config,
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hash(i.layer)}},
		"history":      []any{map[string]string{"created_by": "test"}},
	})
}

func hash(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// write makes the archive as docker save does.
func (i *Image) write(name string, labels map[string]string) error {
	config, err := i.config(labels)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	return writeArchive(i.path, file{"config.json", config}, file{"layer.tar", i.layer}, file{"manifest.json", manifest})
}

// writeOCI makes the archive of an OCI layout.
func (i *Image) writeOCI(name string, words map[string]string) error {
	config, err := i.config(words)
	if err != nil {
		return err
	}
	blob := func(kind string, data []byte, annotations map[string]string) map[string]any {
		d := map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + hash(data), "size": len(data)}
		if annotations != nil {
			d["annotations"] = annotations
		}
		return d
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "annotations": words,
		"config": blob("config.v1+json", config, nil), "layers": []any{blob("layer.v1.tar", i.layer, nil)},
	})
	if err != nil {
		return err
	}
	names := map[string]string{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{blob("manifest.v1+json", manifest, names)}, "annotations": words,
	})
	if err != nil {
		return err
	}
	const blobs = "blobs/sha256/"
	return writeArchive(i.oci, file{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, file{"index.json", index},
		file{blobs + hash(config), config}, file{blobs + hash(manifest), manifest}, file{blobs + hash(i.layer), i.layer})
}
