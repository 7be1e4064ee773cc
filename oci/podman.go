package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// podmanContainer is what podman's storage knows of a container.
type podmanContainer struct {
	ID      string   `json:"id"`
	Names   []string `json:"names"`
	Image   string   `json:"image"` // id; empty: none
	storage string   // the folder DRIVER-containers
}

// findPodman finds a container in the lists that podman's storage keeps; the bundle is
// STORAGE/DRIVER-containers/ID/userdata.
func findPodman(id, bundle string) (podmanContainer, bool) {
	dir := filepath.Dir(bundle)
	if filepath.Base(dir) != id {
		return podmanContainer{}, false
	}
	storage := filepath.Dir(dir)
	for _, name := range []string{"containers.json", "volatile-containers.json"} {
		data, err := readFile(filepath.Join(storage, name))
		if err != nil {
			continue
		}
		if c, ok := parsePodman(data, id); ok {
			c.storage = storage
			return c, true
		}
	}
	return podmanContainer{}, false
}

func parsePodman(data []byte, id string) (podmanContainer, bool) {
	var list []podmanContainer
	if json.Unmarshal(data, &list) != nil {
		return podmanContainer{}, false
	}
	i := slices.IndexFunc(list, func(c podmanContainer) bool { return c.ID == id })
	if i < 0 {
		return podmanContainer{}, false
	}
	return list[i], true
}

func (c podmanContainer) name() string {
	if len(c.Names) == 0 {
		return ""
	}
	return c.Names[0]
}

// podmanImage is an image's id, which is also the name of its folder.
var podmanImage = regexp.MustCompile(`^[0-9a-f]{64}$`)

// imageAnnotations tells annotations of the container's image, which podman copies to its
// containers (before version 5). An image may have been fetched by several manifests: an
// annotation of any of them is the image's. It is nil where they are not found.
func (c podmanContainer) imageAnnotations() func(key, value string) bool {
	if c.ID != "" && c.Image == "" {
		return nothing // it was made of a root file system
	}
	driver, ok := strings.CutSuffix(filepath.Base(c.storage), "-containers")
	if !ok || !podmanImage.MatchString(c.Image) {
		return nil
	}
	dir := filepath.Join(filepath.Dir(c.storage), driver+"-images", c.Image)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var manifests []map[string]string
	for _, e := range entries {
		if !isManifest(e.Name()) {
			continue
		}
		data, err := readFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil
		}
		annotations, err := parseManifest(data)
		if err != nil {
			return nil
		}
		manifests = append(manifests, annotations)
	}
	if len(manifests) == 0 {
		return nil
	}
	return func(key, value string) bool {
		return slices.ContainsFunc(manifests, func(annotations map[string]string) bool {
			v, is := annotations[key]
			return is && v == value
		})
	}
}

// isManifest tells whether a file of an image is "manifest", or "manifest-DIGEST", which
// is written as "=" and its base64.
func isManifest(name string) bool {
	return name == "manifest" || strings.HasPrefix(name, "=bWFuaWZlc3Qt")
}

func parseManifest(data []byte) (map[string]string, error) {
	var manifest struct {
		Annotations map[string]string `json:"annotations"`
	}
	err := json.Unmarshal(data, &manifest)
	return manifest.Annotations, err
}
