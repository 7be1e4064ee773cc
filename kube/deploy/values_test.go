package deploy

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// A value that the chart does not know, or of another type, is refused by its name.
func TestValuesAreChecked(t *testing.T) {
	for values, want := range map[string]string{
		`{metrics: 0}`:                        "at '/metrics': got number, want object",
		`{metrics: {node: 0}}`:                "at '/metrics/node': got number, want string",
		`{metrics: {cluster: "9472"}}`:        "at '/metrics/cluster': '9472' does not match pattern",
		`{metrics: {agent: ":9469"}}`:         "at '/metrics/agent': ':9469' does not match pattern",
		`{metric: {node: ":9471"}}`:           "additional properties 'metric' not allowed",
		`{agent: {conf: x}}`:                  "at '/agent': additional properties 'conf' not allowed",
		`{image: {repository: x}}`:            "at '/image': got object, want string",
		`{imagePullPolicy: always}`:           "at '/imagePullPolicy': value must be one of",
		`{imagePullSecrets: [regcred]}`:       "at '/imagePullSecrets/0': got string, want object",
		`{cluster: {replicas: two}}`:          "at '/cluster/replicas': got string, want integer",
		`{node: {nodeSelector: {a: true}}}`:   "at '/node/nodeSelector/a': got boolean, want string",
		`{containerd: {config: config.toml}}`: "at '/containerd/config': 'config.toml' does not match pattern",
		`{runtimeClass: null}`:                "missing property 'runtimeClass'",
		`{metrics: null}`:                     "missing property 'metrics'",
		`{translate: null}`:                   "missing property 'translate'",
		`{nri: null}`:                         "missing property 'nri'",
		`{uninstall: "yes"}`:                  "at '/uninstall': got string, want boolean",
		`{metrics: {agent: "[::]:1"}, agent: {config: "[kubernetes]\ngrants = true\n[metrics]\nlisten = \":2\"\n"}}`: "agent.config has [metrics] already",
		`{metrics: {agent: "[::]:1"}, agent: {install: false}}`:                                                      "metrics.agent needs agent.install",
	} {
		if _, err := kubetest.Render(t, "net", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}

// The values that helm gives to a part of another chart change nothing.
func TestChartOfAChart(t *testing.T) {
	got, err := kubetest.Render(t, "net", `{global: {a: b}, enabled: true}`)
	if err != nil {
		t.Fatal(err)
	}
	want, err := kubetest.Render(t, "net", "")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-alone +part):\n%s", err, diff)
	}
}

// schema is one of values.schema.json.
type schema struct {
	Description          string
	Type                 string
	Properties           map[string]*schema
	AdditionalProperties any
}

// The schema has the values of values.yaml, with their texts there, and no others.
func TestSchemaHasTheValues(t *testing.T) {
	var s schema
	if err := json.Unmarshal([]byte(read(t, "helm/tsugiki/values.schema.json")[0]), &s); err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, "helm/tsugiki/values.yaml")[0]), &doc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"global", "enabled"} { // a chart of which this is a part gives it these
		if s.Properties[name] == nil {
			t.Errorf("values.schema.json does not have %s", name)
		}
		delete(s.Properties, name)
	}
	compare(t, "", doc.Content[0], &s)
}

// compare compares a mapping of values.yaml with its schema.
func compare(t *testing.T, path string, values *yaml.Node, s *schema) {
	t.Helper()
	if s.Type != "object" || s.AdditionalProperties != false {
		t.Errorf("%s: the schema allows values that nobody reads", path)
	}
	for i := 0; i < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		of := s.Properties[key.Value]
		if of == nil {
			t.Errorf("values.schema.json does not have %s", name)
			continue
		}
		delete(s.Properties, key.Value)
		lines := strings.Split(key.HeadComment, "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(strings.TrimPrefix(lines[i], "#"))
		}
		if text := strings.Join(lines, " "); text == "" || of.Description != text {
			t.Errorf("%s is in values.yaml\n\t%q\nand in values.schema.json\n\t%q", name, text, of.Description)
		}
		if value.Kind == yaml.MappingNode && of.Properties != nil {
			compare(t, name, value, of)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		t.Errorf("values.yaml does not have %s", strings.TrimPrefix(path+"."+name, "."))
	}
}
