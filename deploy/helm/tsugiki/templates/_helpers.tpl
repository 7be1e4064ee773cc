{{- /* What pods of the chart have in common: "of" is node or cluster of the values. */ -}}
{{- define "tsugiki.placed" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "tsugiki.image" -}}
image: {{ .Values.image }}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* The port of an address, by a name that Prometheus finds. */ -}}
{{- define "tsugiki.metrics" -}}
{{- with . }}
ports: [{name: metrics, containerPort: {{ regexFind "[0-9]+$" . }}}]
{{- end }}
{{- end }}

{{- /* The agent's configuration. */ -}}
{{- define "tsugiki.config" -}}
{{ .Values.agent.config | trimSuffix "\n" }}
{{- with .Values.metrics.agent }}
{{- if regexMatch "(?m)^\\s*\\[\\s*metrics\\s*\\]" $.Values.agent.config }}
{{- fail "agent.config has [metrics] already: write listen there, and not metrics.agent" }}
{{- end }}
[metrics]
listen = {{ quote . }}
{{- end }}
{{- end }}
