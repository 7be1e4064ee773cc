package grant

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// asking is a pod that asks by the annotation; %s are its containers and what else it specifies.
func asking(spec string) string {
	return `{metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}, annotations: {kube.tsugiki.dev/graft: "true"}}, spec: {` + spec + `}}`
}

const drop = `securityContext: {capabilities: {drop: [ALL]}}`

func TestAnnotated(t *testing.T) {
	const policy = `{podSelector: {}, ingress: [{endpoint: web, port: 80, container: c}]}`
	c := func(security string) string { return `containers: [{name: c, ` + security + `}]` }
	for name, tt := range map[string]struct {
		pod    string
		policy string
		want   string // in the refusal; empty: there is none
		final  bool
	}{
		"drops all":                       {asking(c(drop)), policy, "", false},
		"drops what matters":              {asking(c(`securityContext: {capabilities: {drop: [net_raw]}}`)), policy, "", false},
		"drops all, and adds another":     {asking(c(`securityContext: {capabilities: {drop: [all], add: [NET_BIND_SERVICE]}}`)), policy, "", false},
		"says nothing":                    {asking(c(`image: x`)), policy, "container c may have CAP_NET_RAW", true},
		"drops another":                   {asking(c(`securityContext: {capabilities: {drop: [CHOWN]}}`)), policy, "CAP_NET_RAW", true},
		"a name that engines do not know": {asking(c(`securityContext: {capabilities: {drop: [CAP_NET_RAW]}}`)), policy, "CAP_NET_RAW", true},
		"drops all, and adds it":          {asking(c(`securityContext: {capabilities: {drop: [ALL], add: [NET_RAW]}}`)), policy, "CAP_NET_RAW", true},
		"drops all, and adds it so":       {asking(c(`securityContext: {capabilities: {drop: [ALL], add: [cap_net_raw]}}`)), policy, "CAP_NET_RAW", true},
		"adds all":                        {asking(c(`securityContext: {capabilities: {drop: [NET_RAW], add: [ALL]}}`)), policy, "CAP_NET_RAW", true},
		"privileged":                      {asking(c(`securityContext: {privileged: true, capabilities: {drop: [ALL]}}`)), policy, "CAP_NET_ADMIN", true},
		"an administrator":                {asking(c(`securityContext: {capabilities: {drop: [ALL], add: [NET_ADMIN]}}`)), policy, "CAP_NET_ADMIN", true},
		"an init container":               {asking(c(drop) + `, initContainers: [{name: i}]`), policy, "container i may have", true},
		"an ephemeral container":          {asking(c(drop) + `, ephemeralContainers: [{name: e}]`), policy, "container e may have", true},
		"each container":                  {asking(c(drop) + `, initContainers: [{name: i, ` + drop + `}], ephemeralContainers: [{name: e, ` + drop + `}]`), policy, "", false},
		"a user namespace":                {asking(c(drop) + `, hostUsers: false`), policy, "hostUsers", true},
		"no user namespace":               {asking(c(drop) + `, hostUsers: true`), policy, "", false},
		"the host's network":              {asking(c(drop) + `, hostNetwork: true`), policy, "leave hostNetwork or the annotation", true},
		"no policy":                       {asking(c(drop)), `{podSelector: {matchLabels: {app: db}}}`, "leave the annotation kube.tsugiki.dev/graft out", false},
		"no such endpoint":                {asking(c(drop)), `{podSelector: {}, ingress: [{endpoint: nowhere, port: 80, container: c}]}`, "no GraftEndpoint nowhere", false},
		"translated":                      {asking(c(drop)), `{podSelector: {}, translate: {endpoint: web6}}`, "runtimeClassName: tsugiki-translate", false},
		"the RuntimeClass, and no drop":   {asking(c(`image: x`) + `, runtimeClassName: tsugiki`), policy, "", false},
		"another word":                    {strings.Replace(asking(c(`image: x`)), `"true"`, `"yes"`, 1), policy, "", false},
	} {
		d := Decide(question(t, tt.pod, tt.policy))
		if got := d.Grant.Refused; tt.want == "" && got != "" || !strings.Contains(got, tt.want) || strings.Contains(got, "\n") || d.Final != tt.final {
			t.Errorf("%s: %q, final is %v; want %q, %v", name, got, d.Final, tt.want, tt.final)
		}
		if tt.want == "" && len(d.Grant.Containers) == 0 {
			t.Errorf("%s: %+v has no rules", name, d.Grant)
		}
	}
}

func TestOfClass(t *testing.T) {
	d := OfClass(parse[corev1.Pod](t, asking(`runtimeClassName: kata`)))
	if !d.Final || !strings.Contains(d.Grant.Refused, "has kata") || d.Grant.Namespace != "shop" || len(d.Served) > 0 {
		t.Errorf("%+v", d)
	}
}
