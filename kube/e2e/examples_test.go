package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// testDocumented runs the commands that docs/KUBERNETES.md prints for a first pod and for one that is refused,
// on the node and as they are printed. Then it has the other example.
func (c *cluster) testDocumented() {
	place, page := c.placeOfExamples(), c.readProject("docs/KUBERNETES.md")
	const refusal = "GraftEndpoint hello is not for this pod: its allowedPods select neither namespace hello nor the pod's labels there"
	if !strings.Contains(page, "\n"+refusal+"\n") {
		c.t.Errorf("docs/KUBERNETES.md does not show %q", refusal)
	}
	var host string // of the first pod
	for _, tt := range []struct {
		command, says string
	}{
		{"kubectl apply -f deploy/examples/web.yaml", "created"},
		{"kubectl rollout status -n hello", "successfully rolled out"},
		{"kubectl get tsugiki -A", `(?s)graftendpoint\S+/hello\s.*20000-20999.*hello\s+graftpolicy\S+/web\s`},
		{"kubectl get pods", `(?m)^\[{"container":"nginx","port":80,"protocol":"TCP","host":"(198\.51\.100\.1:20\d\d\d)","rule":"\w+"}\]\n\[.+\]$`},
		{"curl http://HOST/", "^hello\n$"},
		{"curl http://$(kubectl get service", "^hello\n$"},
		{"kubectl label namespace hello team-", "unlabeled"},
		{"kubectl rollout restart", "restarted"},
		{"kubectl get events", regexp.QuoteMeta(refusal)},
		{"kubectl label namespace hello team=hello", "labeled"},
	} {
		found := c.printed(place, page, tt.command, tt.says, host)
		if len(found) > 1 && host == "" {
			host = found[1]
		}
	}
	c.rolledOut("hello", "web")

	place.sh("kubectl apply -f deploy/examples/redis.yaml")
	testkit.Eventually(c.t, func() error {
		out, err := place.run("kubectl logs -n counter deployment/client")
		if err == nil && !regexp.MustCompile(`(?m)^\d+$`).MatchString(out) {
			err = fmt.Errorf("the client says %q\n%s", out, c.describe("counter"))
		}
		return err
	})
	for _, name := range []string{"web", "redis"} {
		place.sh("kubectl delete -f deploy/examples/" + name + ".yaml")
	}
}

// printed finds the one command of a page that begins with a text. It runs the command again and again until the
// output is as wanted, because pods and events take a moment. It returns the output.
func (c *cluster) printed(place examples, page, begins, says, host string) (found []string) {
	c.t.Helper()
	at := strings.Index(page, "\n"+begins)
	if n := strings.Count(page, "\n"+begins); n != 1 {
		c.t.Fatalf("docs/KUBERNETES.md has %d commands %q", n, begins)
	}
	command, _, _ := strings.Cut(page[at+1:], "\n")
	command, _, _ = strings.Cut(command, " #")
	testkit.Eventually(c.t, func() error {
		out, err := place.run(strings.ReplaceAll(command, "HOST", host))
		if found = regexp.MustCompile(says).FindStringSubmatch(out); err == nil && found == nil {
			err = fmt.Errorf("%s says %q, and not %q\n%s", command, out, says, c.describe("hello"))
		}
		return err
	})
	return found
}

// examples is a folder with deploy/examples, whose pods have the image of the tests, as the node fetches none,
// and with kubectl.
type examples struct {
	c   *cluster
	dir string
}

func (c *cluster) placeOfExamples() examples {
	c.t.Helper()
	place := examples{c, c.t.TempDir()}
	for _, name := range []string{"web", "redis"} {
		file := filepath.Join("deploy", "examples", name+".yaml")
		list := kubetest.Parse(c.t, []byte(c.readProject(file)))
		for _, o := range list {
			if o.GetKind() == "Deployment" {
				c.replaceImages(o)
			}
		}
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": list})
		if err != nil {
			c.t.Fatal(err)
		}
		place.write(file, text)
	}
	place.write("bin/kubectl", fmt.Appendf(nil, "#!/bin/sh\nexec %q --kubeconfig %q \"$@\"\n", kubetest.Program(c.t, "kubectl"), c.Kubeconfig("admin")))
	return place
}

func (p examples) write(name string, text []byte) {
	p.c.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.c.t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		p.c.t.Fatal(err)
	}
}

// run runs a command on the node, and returns what it prints.
func (p examples) run(command string) (string, error) {
	ctx, cancel := context.WithTimeout(p.c.t.Context(), testkit.Patience)
	defer cancel()
	cmd := p.c.Rig.Command(ctx, "sh", "-c", `cd "$0" && PATH="$0/bin:$PATH" && eval "$1"`, p.dir, command)
	var out, wrong strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", command, err, &out, &wrong)
	}
	return out.String(), nil
}

func (p examples) sh(command string) {
	p.c.t.Helper()
	if _, err := p.run(command); err != nil {
		p.c.t.Fatal(err)
	}
}

// programs are those of the test's image, for the images of the examples.
var programs = map[string][]string{"nginx": engines.Nginx, "redis": engines.Redis}

// replaceImages has the containers of a Deployment have the test's image, which needs to be told what to run,
// and end at once.
func (c *cluster) replaceImages(o *unstructured.Unstructured) {
	c.t.Helper()
	spec, found, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
	if err != nil || !found {
		c.t.Fatalf("%s has no pod: %v", o.GetName(), err)
	}
	spec["terminationGracePeriodSeconds"] = int64(1)
	for _, container := range spec["containers"].([]any) {
		of := container.(map[string]any)
		image, _, _ := strings.Cut(of["image"].(string), ":")
		if of["command"] == nil {
			var command []any
			for _, word := range programs[image] {
				command = append(command, word)
			}
			if command == nil {
				c.t.Fatalf("the test's image has no program in the place of the image %s", image)
			}
			of["command"] = command
		}
		of["image"], of["imagePullPolicy"] = engines.ImageName, "Never"
	}
	if err := unstructured.SetNestedMap(o.Object, spec, "spec", "template", "spec"); err != nil {
		c.t.Fatal(err)
	}
}

// readProject is a file of the project.
func (c *cluster) readProject(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(kubetest.Root(c.t), name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}
