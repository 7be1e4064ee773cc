package oci

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// dockerContainer has the fields of dockerd's config.v2.json and hostconfig.json that this package
// uses.
type dockerContainer struct {
	ID, Name string
	Config   struct{ Labels map[string]string }
	Image    string // id
	Driver   string // of its storage
	// ImageManifest is empty unless the image is in containerd's image store, which is the default
	// since Docker 29.
	ImageManifest struct{ Digest string }
	networkMode   string
	published     []string // ports of the container: PORT/PROTOCOL
	root          string   // of dockerd's files
}

// findDocker reads dockerd's files of a container. config.json has neither name nor labels, but
// paths that lead to dockerd's files: ROOT/containers/ID is the folder of a container.
func findDocker(s *spec, id string) (dockerContainer, bool) {
	for _, root := range dockerRoots(s) {
		dir := filepath.Join(root, "containers", id)
		config, err := readFile(filepath.Join(dir, "config.v2.json"))
		if err != nil {
			continue
		}
		host, err := readFile(filepath.Join(dir, "hostconfig.json"))
		if err != nil {
			continue
		}
		if c, ok := parseDocker(config, host, id); ok {
			c.root = root
			return c, true
		}
	}
	return dockerContainer{}, false
}

// dockerRoots returns the folders in which dockerd may have its files. /etc/hostname and other
// files are mounted from ROOT/containers/ID. If the container shares the network of another
// one, ID is that of the other one. The root file system is at ROOT/DRIVER/..., three levels deep.
func dockerRoots(s *spec) []string {
	var roots []string
	for _, m := range s.mounts {
		for dir := filepath.Dir(m.Source); filepath.IsAbs(dir) && dir != "/"; dir = filepath.Dir(dir) {
			if filepath.Base(dir) == "containers" {
				roots = append(roots, filepath.Dir(dir))
			}
		}
	}
	if root, _ := s.storage(); root != "" {
		roots = append(roots, root)
	}
	return roots
}

func parseDocker(config, host []byte, id string) (dockerContainer, bool) {
	var c dockerContainer
	var h struct {
		NetworkMode  string
		PortBindings map[string]json.RawMessage
	}
	if json.Unmarshal(config, &c) != nil || json.Unmarshal(host, &h) != nil || c.ID != id {
		return dockerContainer{}, false
	}
	c.networkMode, c.published = h.NetworkMode, slices.Sorted(maps.Keys(h.PortBindings))
	return c, true
}

var (
	sha256Digest = regexp.MustCompile(`^sha256:([0-9a-f]{64})$`)
	driverName   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
)

// imageLabels returns a function that recognizes labels of the container's image. It returns nil
// if the image's configuration is not found.
func (c dockerContainer) imageLabels() func(key, value string) bool {
	labels, err := parseImageLabels(c.imageConfig())
	if err != nil {
		return nil
	}
	return func(key, value string) bool {
		v, is := labels[key]
		return is && v == value
	}
}

// imageConfig reads the image's configuration. It returns nil if this is not found.
func (c dockerContainer) imageConfig() []byte {
	if c.ImageManifest.Digest != "" {
		var manifest struct{ Config struct{ Digest string } }
		if json.Unmarshal(c.content(c.ImageManifest.Digest), &manifest) != nil {
			return nil
		}
		return c.content(manifest.Config.Digest)
	}
	if !driverName.MatchString(c.Driver) {
		return nil
	}
	return readHashed(filepath.Join(c.root, "image", c.Driver, "imagedb", "content", "sha256"), c.Image)
}

// content reads a file of a containerd: of dockerd's own or of the machine's. The name of a file
// is its hash, so the file is the image's in whichever of them it is found.
func (c dockerContainer) content(digest string) []byte {
	for _, root := range []string{filepath.Join(c.root, "containerd", "daemon"), "/var/lib/containerd"} {
		if data := readHashed(filepath.Join(root, "io.containerd.content.v1.content", "blobs", "sha256"), digest); data != nil {
			return data
		}
	}
	return nil
}

// readHashed reads the file of a folder that has this hash, and its hash as its name. It returns
// nil if there is none.
func readHashed(dir, digest string) []byte {
	id := sha256Digest.FindStringSubmatch(digest)
	if id == nil {
		return nil
	}
	data, err := readFile(filepath.Join(dir, id[1]))
	if err != nil || fmt.Sprintf("%x", sha256.Sum256(data)) != id[1] {
		return nil
	}
	return data
}

// parseImageLabels reads an image's configuration.
func parseImageLabels(data []byte) (map[string]string, error) {
	var image struct {
		Config struct{ Labels map[string]string }
	}
	err := json.Unmarshal(data, &image)
	return image.Config.Labels, err
}
