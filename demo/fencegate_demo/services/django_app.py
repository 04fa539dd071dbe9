"""Accounts behind a fence, with Django: `gunicorn fencegate_demo.services.django_app:application`.

One file instead of a project; of a project, `settings.py`, `views.py`, `urls.py` and `wsgi.py` each have their part.
"""

import json
import os

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("DATABASE_FILE", "accounts.db"),
            "OPTIONS": {"timeout": 20},
        }
    },
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, models  # noqa: E402
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse  # noqa: E402
from django.shortcuts import get_object_or_404  # noqa: E402
from django.urls import path  # noqa: E402

from fencegate.middleware import WsgiFenceMiddleware, require_fence  # noqa: E402


class Account(models.Model):  # type: ignore[misc]  # Django has no types of its own
    id = models.BigIntegerField(primary_key=True)
    balance = models.BigIntegerField()

    class Meta:
        app_label = "accounts"
        db_table = "accounts"


def account(request: HttpRequest, account_id: int) -> HttpResponse:
    if request.method == "GET":
        return JsonResponse({"balance": get_object_or_404(Account, id=account_id).balance})
    if request.method == "PUT":
        return write(request, account_id)
    return HttpResponseNotAllowed(["GET", "PUT"])


def write(request: HttpRequest, account_id: int) -> HttpResponse:
    balance = int(json.loads(request.body)["balance"])
    # The lock key is made of the number that the view uses. Without a token this is answered as 428, with one that is
    # older than one that was here before as 412. From here to the commit at the end of the block no newer holder can
    # come between.
    fence = require_fence(f"acct:{account_id}")
    with fence.enforce(connection):
        Account.objects.update_or_create(id=account_id, defaults={"balance": balance})
    return HttpResponse(status=204)


urlpatterns = [path("accounts/<int:account_id>", account)]

with connection.schema_editor() as editor:  # a project has migrations instead
    if Account._meta.db_table not in connection.introspection.table_names():
        editor.create_model(Account)

application = WsgiFenceMiddleware(get_wsgi_application())
