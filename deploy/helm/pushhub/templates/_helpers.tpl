{{- define "pushhub.image" -}}
{{ required "image.repository is needed" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pushhub.host" -}}
{{ (urlParse (required "publicUrl is needed" .Values.publicUrl)).hostname }}
{{- end }}

{{- define "pushhub.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pushhub.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "pushhub.env" -}}
- {name: PUSHHUB_PUBLIC_URL, value: {{ .Values.publicUrl | quote }}}
- {name: PUSHHUB_BEHIND_PROXY, value: "on"}
- {name: PUSHHUB_GRPC_REST, value: "{{ .Release.Name }}-web:8000"}
- name: PUSHHUB_JOURNAL
  value: {{ if .Values.journal.existingClaim }}/journal{{ else }}"off"{{ end }}
{{- with .Values.journal.bucket }}
{{- if not $.Values.journal.existingClaim }}{{ fail "journal.bucket needs journal.existingClaim, from which maintenance takes segments there" }}{{ end }}
- {name: PUSHHUB_JOURNAL_BUCKET, value: {{ . | quote }}}
{{- end }}
{{- $secrets := dict "SECRET_KEY" "secret_key" "DATABASE_URL" "database_url" "REDIS_URL" "redis_url" "METRICS_TOKEN" "metrics_token" "FLOWER_LOGIN" "flower_login" }}
{{- if .Values.secrets.brokerUrl }}{{ $_ := set $secrets "BROKER_URL" "broker_url" }}{{ end }}
{{- if .Values.secrets.replicaUrl }}{{ $_ := set $secrets "REPLICA_URL" "replica_url" }}{{ end }}
{{- range $name, $key := $secrets }}
- {name: PUSHHUB_{{ $name }}_FILE, value: /run/secrets/pushhub/{{ $key }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "pushhub.container" -}}
image: {{ include "pushhub.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
{{ include "pushhub.env" . | indent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets/pushhub, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: data, mountPath: /data}
  - {name: journal, mountPath: /journal}
{{- end }}

{{- define "pushhub.pod" -}}
automountServiceAccountToken: false
# Its variables would be named PUSHHUB_WEB_PORT, as if they were settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: secrets
    secret: {secretName: {{ .Values.secrets.existingSecret }}, defaultMode: 0440}
  - {name: tmp, emptyDir: {}}
  - {name: data, emptyDir: {}}
  - name: journal
  {{- if .Values.journal.existingClaim }}
    persistentVolumeClaim: {claimName: {{ .Values.journal.existingClaim }}}
  {{- else }}
    emptyDir: {}
  {{- end }}
{{- end }}
